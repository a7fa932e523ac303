namespace slackwater {}
