#include "bench/lazy/paper.hpp"

#include <algorithm>

namespace slackwater::bench {
namespace {

constexpr PaperRuns kRuns7B{{{{204, 252, 274, 312, 406, 631},
                              {234, 337, 360, 419, 564, 1034},
                              {178, 202, 218, 242, 244, 465},
                              {167, 176, 175, 190, 184, 282}}}};
constexpr PaperRuns kRuns13B{{{{322, 371, 391, 429, 518, 759},
                               {369, 487, 521, 610, 799, 1364},
                               {301, 329, 322, 349, 401, 517},
                               {285, 291, 291, 297, 314, 351}}}};

constexpr std::array kModels{
    PaperModel{"3B", 4, 45, .81, .79, .10, {4, 7, 9, 135}, {9, 9, 7, 4}, nullptr},
    PaperModel{"7B", 8, 83, 1.26, 1.82, .12, {8, 11, 20, 223}, {13, 15, 7, 5}, &kRuns7B},
    PaperModel{"13B", 16, 166, 1.85, 3.56, .09, {7, 23, 41, 234}, {29, 17, 10, 6}, &kRuns13B},
    PaperModel{"30B", 32, 444, 3.72, 8.58, .11, {15, 44, 47, 395}, {42, 24, 22, 14}, nullptr},
    PaperModel{"70B", 80, 1065, 6.71, 16.82, .07, {54, 78, 117, 638}, {47, 39, 36, 29}, nullptr},
};

}  // namespace

std::span<const PaperModel> paper_models() { return kModels; }

const PaperModel& paper_model(std::string_view name) { return *std::ranges::find(kModels, name, &PaperModel::name); }

}  // namespace slackwater::bench
