// SW_TRY: hand an error up. The only macros of the code base.
#pragma once

#include "slackwater/error.hpp"

#define SW_CONCAT_INNER(a, b) a##b
#define SW_CONCAT(a, b) SW_CONCAT_INNER(a, b)

// SW_TRY(status_expression): returns its error, if it is one.
#define SW_TRY(expression)                                                  \
  do {                                                                      \
    if (auto sw_status = (expression); !sw_status.has_value()) [[unlikely]] \
      return std::unexpected(std::move(sw_status).error());                 \
  } while (false)

// SW_ASSIGN(auto x, result_expression): x is the value, or the error is returned.
#define SW_ASSIGN_INNER(temporary, target, expression)    \
  auto temporary = (expression);                          \
  if (!temporary.has_value()) [[unlikely]]                \
    return std::unexpected(std::move(temporary).error()); \
  target = std::move(*temporary)
#define SW_ASSIGN(target, expression) SW_ASSIGN_INNER(SW_CONCAT(sw_result_, __LINE__), target, expression)
