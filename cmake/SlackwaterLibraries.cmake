# The libraries that Slackwater is built with, and the oldest version of each that it is built and tested with: those of
# Debian 12. An older one stops CMake with one sentence here, rather than the compiler with a hundred lines.
# tests/python/test_library_versions.py pretends to be each of them in an old version.
#
# slackwater_find(<name> [what find_package takes])   find_package, for the libraries that bring a CMake package
# slackwater_find_liburing()                          sets LIBURING_STATIC
# slackwater_find_xxhash()                            headers only: sets XXHASH_INCLUDE_DIR
# slackwater_check_compiler()

#     name           oldest  where it is from
set(slackwater_libraries
  "g++             12       the package g++"
  "clang           19       the package clang-19"
  "fmt             9.1      the package libfmt-dev"
  "nlohmann_json   3.11     the package nlohmann-json3-dev"
  "CLI11           2.1      the package libcli11-dev"
  "liburing        2.3      the package liburing-dev"
  "xxHash          0.8.1    the package libxxhash-dev"
  "GTest           1.12     the packages libgtest-dev and libgmock-dev"
  "benchmark       1.7      the package libbenchmark-dev"
  "MPI             3.1      the package libopenmpi-dev; -DSLACKWATER_MPI=OFF does without"
  "Python          3.11     the packages python3-dev and python3-venv"
  "nanobind        3.1      pip install nanobind")

# Stops CMake unless `found` is a version that will do. Empty means: there is no such library.
function(slackwater_check name found)
  foreach(row IN LISTS slackwater_libraries)
    if(row MATCHES "^([^ ]+) +([0-9.]+) +(.+)$" AND CMAKE_MATCH_1 STREQUAL name)
      set(oldest ${CMAKE_MATCH_2})
      set(source ${CMAKE_MATCH_3})
    endif()
  endforeach()
  if(NOT DEFINED oldest)
    message(FATAL_ERROR "${name} is not in the table of cmake/SlackwaterLibraries.cmake")
  elseif(NOT found)
    message(FATAL_ERROR "Slackwater needs ${name} ${oldest} or newer, which was not found (${source}).")
  elseif(found VERSION_LESS oldest)
    message(FATAL_ERROR "Slackwater needs ${name} ${oldest} or newer, and found ${found} (${source}).")
  endif()
endfunction()

# A macro: what find_package sets is for the caller.
macro(slackwater_find name)
  find_package(${name} QUIET ${ARGN})
  if(${name}_FOUND)
    slackwater_check(${name} "${${name}_VERSION}")
  else()
    slackwater_check(${name} "")
  endif()
endmacro()

# Statically, so that the wheel runs where liburing is not installed.
function(slackwater_find_liburing)
  find_library(LIBURING_STATIC liburing.a)
  find_path(LIBURING_INCLUDE_DIR liburing.h)
  set(version "")
  if(LIBURING_STATIC AND LIBURING_INCLUDE_DIR)
    slackwater_header_version("${LIBURING_INCLUDE_DIR}/liburing/io_uring_version.h" IO_URING_VERSION version)
    if(NOT version)  # there is no such header before 2.4
      find_package(PkgConfig QUIET)
      execute_process(COMMAND "${PKG_CONFIG_EXECUTABLE}" --modversion liburing
        OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
  endif()
  slackwater_check(liburing "${version}")
endfunction()

function(slackwater_find_xxhash)
  find_path(XXHASH_INCLUDE_DIR xxhash.h)
  slackwater_header_version("${XXHASH_INCLUDE_DIR}/xxhash.h" XXH_VERSION version)
  slackwater_check(xxHash "${version}")
endfunction()

# Joins <prefix>_MAJOR, _MINOR and _RELEASE as a header defines them. Empty if there is no such header.
function(slackwater_header_version header prefix variable)
  set(numbers "")
  if(EXISTS "${header}")
    file(STRINGS "${header}" lines REGEX "define +${prefix}_(MAJOR|MINOR|RELEASE) +[0-9]+")
    list(TRANSFORM lines REPLACE ".* ([0-9]+).*" "\\1" OUTPUT_VARIABLE numbers)
  endif()
  list(JOIN numbers "." version)
  set(${variable} "${version}" PARENT_SCOPE)
endfunction()

function(slackwater_check_compiler)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    slackwater_check(g++ "${CMAKE_CXX_COMPILER_VERSION}")
  elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    slackwater_check(clang "${CMAKE_CXX_COMPILER_VERSION}")
  endif()
endfunction()
