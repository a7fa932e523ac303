// SW_TRY and SW_ASSIGN: return an error to the caller. Besides the CUDA function tables, the only macros in the code.
#pragma once

#include "slackwater/error.hpp"

#define SW_CONCAT_INNER(a, b) a##b
#define SW_CONCAT(a, b) SW_CONCAT_INNER(a, b)

// SW_TRY(status_expression): returns the error if there is one.
#define SW_TRY(expression)                                                  \
  do {                                                                      \
    if (auto sw_status = (expression); !sw_status.has_value()) [[unlikely]] \
      return std::unexpected(std::move(sw_status).error());                 \
  } while (false)

// SW_ASSIGN(auto x, result_expression): assigns the value to x, or returns the error.
#define SW_ASSIGN_INNER(temporary, target, expression)    \
  auto temporary = (expression);                          \
  if (!temporary.has_value()) [[unlikely]]                \
    return std::unexpected(std::move(temporary).error()); \
  target = std::move(*temporary)
#define SW_ASSIGN(target, expression) SW_ASSIGN_INNER(SW_CONCAT(sw_result_, __LINE__), target, expression)
