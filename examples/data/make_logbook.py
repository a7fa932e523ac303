"""Writes logbook.txt: the log of a ship that never sailed. Deterministic: the same file every time.

    python make_logbook.py > logbook.txt

The tides follow the two largest constituents, the moon's M2 and the sun's S2, so that high water comes some fifty
minutes later each day and springs alternate with neaps; weather and position drift from day to day. A model has
something to learn at every scale: spelling, the shape of an entry, the clock, the calendar.
"""

import datetime
import math
import random

DAYS = 480
START = datetime.date(1887, 3, 1)
M2_HOURS, S2_HOURS = 12.4206, 12.0

WINDS = [
    "calm",
    "light air",
    "light breeze",
    "gentle breeze",
    "moderate breeze",
    "fresh breeze",
    "strong breeze",
    "near gale",
    "gale",
]
POINTS = ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"]
SEAS = [
    "smooth as glass",
    "a slight swell",
    "a long swell from the {point}",
    "short and choppy",
    "a cross sea",
    "a heavy sea running",
]
SKIES = [
    "clear",
    "fair with some cloud",
    "overcast",
    "hazy towards the horizon",
    "dark to windward",
    "clearing after rain",
]
ANCHORAGES = [
    "Kelder Roads",
    "the Outer Sound",
    "Marrow Bay",
    "the lee of Stane Point",
    "Harrow Deep",
    "the Eastern Narrows",
]
HANDS = ["the mate", "the carpenter", "the cook", "the boy", "the bosun", "Mr. Aldane", "old Fenwick", "the captain"]
WORKS = [
    "mended the fore topsail",
    "caulked the deck abaft the mainmast",
    "overhauled the running rigging",
    "took stock of the water casks",
    "wound the chronometer and wrote down its error",
    "scraped and oiled the rails",
    "sounded the well and found it dry",
    "set up the lee shrouds",
    "turned the cable end for end",
    "copied the log of the week into the fair book",
    "trimmed the lamps",
    "repaired the longboat",
    "put a new splice in the hawser",
    "dried the spare canvas on the boom",
]
SIGHTS = [
    "a steamer hull down, steering {point}",
    "two luggers standing in for the land",
    "gannets diving astern",
    "a light vessel bearing {point}",
    "nothing but water",
    "a school of porpoises under the bows",
    "a brig that did not answer our signal",
    "the loom of a light to the {point}",
]
REMARKS = [
    "What is not written down before the tide turns is lost.",
    "All hands well.",
    "Nothing further to remark.",
    "A quiet day is soon written.",
    "We wait for the ebb.",
    "The glass is falling.",
    "The glass is rising.",
    "Two copies of the reckoning were made, and both agree.",
    "So ends this day.",
]


def tide_height(hours: float) -> float:
    """Metres over the mean, hours since the start."""
    return 1.9 * math.cos(math.tau * hours / M2_HOURS) + 0.7 * math.cos(math.tau * hours / S2_HOURS)


def high_waters(day: int) -> list[tuple[float, float]]:
    """Hour of the day and height of each high water, to the minute."""
    minutes = range(day * 1440, (day + 1) * 1440)
    heights = {m: tide_height(m / 60) for m in range(minutes.start - 1, minutes.stop + 1)}
    return [((m - minutes.start) / 60, heights[m]) for m in minutes if heights[m - 1] <= heights[m] > heights[m + 1]]


def clock(hour: float) -> str:
    minutes = round(hour * 60) % 1440
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def main() -> None:
    rng = random.Random(1887)
    wind, point, glass = 3, 5, 29.9
    at_anchor, anchorage = True, ANCHORAGES[0]

    def say(words: list[str]) -> str:
        return rng.choice(words).format(point=POINTS[point])

    for day in range(DAYS):
        date = START + datetime.timedelta(days=day)
        wind = min(max(wind + rng.choice([-1, 0, 0, 1]), 0), len(WINDS) - 1)
        point = (point + rng.choice([-1, 0, 0, 0, 1])) % len(POINTS)
        glass = min(max(glass + rng.choice([-0.1, 0.0, 0.1]), 28.9), 30.6)
        if rng.random() < 0.25:
            at_anchor = not at_anchor
            anchorage = rng.choice(ANCHORAGES)

        print(f"{date:%A}, {date.day} {date:%B} {date.year}. Day {day + 1}.")
        print(f"Wind {POINTS[point]}, {WINDS[wind]}. Glass {glass:.1f}. Sky {say(SKIES)}; sea {say(SEAS)}.")
        if at_anchor:
            print(f"At anchor in {anchorage}, in {rng.randint(4, 11)} fathoms, good holding.")
        else:
            course, speed = POINTS[(point + 3) % 8], rng.randint(2, 4) + wind // 2
            print(f"Under way, course {course}, {speed} knots by the log, {anchorage} astern.")
        for hour, height in high_waters(day):
            name = "spring tide" if height > 2.3 else "neap tide" if height < 1.5 else "tide"
            slack = rng.randint(9, 21)
            tide = f"High water at {clock(hour)}, {height:.1f} metres over the mean, a {name}"
            print(f"{tide}; slack water lasted {slack} minutes.")
        for hand in rng.sample(HANDS, 2):
            print(f"{hand[0].upper()}{hand[1:]} {say(WORKS)}.")
        print(f"In sight: {say(SIGHTS)}. {say(REMARKS)}\n")


if __name__ == "__main__":
    main()
