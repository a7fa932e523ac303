# slackwater_library(<folder> SOURCES ... USES <folders> LIBRARIES <targets>)
#   Target sw_<folder>, built from src/<folder>. USES lists the other folders that it may include. LIBRARIES are
#   third-party.
# slackwater_test(<name> SOURCES ... USES <folders> [LABELS ...] [PROGRAM <program>])
#   A GoogleTest binary, registered with ctest under these labels. The label "threads" marks tests worth running under
#   tsan. Tests that name the same PROGRAM are compiled and linked together, and <name> is a link to it. When called
#   by that name, the program runs only the tests in SOURCES (tests/support/test_main.cpp).
# slackwater_test_on_nfs(<names>)
#   Runs these tests a second time as <name>_on_nfs. Each rank is then on its own simulated NFS host
#   (tests/support/rank_storage.hpp).
# slackwater_compile_as_test(<target>)
#   Compiles a program or a static library that only tests use as they are compiled: quickly, with their headers.
# slackwater_mpirun(<variable>)
#   The command that starts ranks on this machine only, with shared memory between them. The caller appends the number
#   of ranks and the program.

add_library(sw_flags INTERFACE)
target_compile_options(sw_flags INTERFACE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
  -Wnon-virtual-dtor -Woverloaded-virtual -Wunused-result -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ takes a folder compiled as one file for a header with anonymous types in it.
  target_compile_options(sw_flags INTERFACE -Wno-subobject-linkage)
  # A fifth more memory before g++ looks for garbage: a twentieth of its time.
  target_compile_options(sw_flags INTERFACE --param=ggc-min-heapsize=600000)
  # g++ 12 warns about moved std::expected and std::string without cause (GCC bugs 105562, 105329).
  target_compile_options(sw_flags INTERFACE -Wno-maybe-uninitialized -Wno-restrict)
endif()
if(SLACKWATER_SANITIZE)
  target_compile_options(sw_flags INTERFACE
    -fsanitize=${SLACKWATER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(sw_flags INTERFACE -fsanitize=${SLACKWATER_SANITIZE})
endif()

# Every test; and every test with the label "threads", which is all that a tsan build needs.
add_custom_target(all_tests)
add_custom_target(threads_tests)

function(slackwater_library folder)
  cmake_parse_arguments(arg "" "" "SOURCES;USES;LIBRARIES" ${ARGN})
  set(target sw_${folder})
  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  list(TRANSFORM arg_USES PREPEND sw_ OUTPUT_VARIABLE used)
  target_link_libraries(${target} PUBLIC ${used} PRIVATE sw_flags)
  target_link_libraries(${target} PUBLIC ${arg_LIBRARIES})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SLACKWATER_UNITY} UNITY_BUILD_BATCH_SIZE 0)
endfunction()

# Compiling tests, three times over, is most of what `make test` and `make test-sanitizers` do. Three things make it
# quick. Tests are hardly optimised (what they test is). The headers that nearly all of them include are compiled once.
# And several files are compiled as one: half of the time for a file goes into headers and templates that its neighbours
# need too. SLACKWATER_UNITY=OFF compiles each file alone, and makes each test a program of its own.
function(slackwater_test_headers)
  slackwater_find(GTest)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/test_headers.cpp CONTENT "int main() {}\n")
  add_executable(sw_test_headers ${PROJECT_BINARY_DIR}/test_headers.cpp)  # a program, as those that use the headers
  target_link_libraries(sw_test_headers PRIVATE sw_base sw_flags GTest::gtest GTest::gmock)
  target_compile_options(sw_test_headers PRIVATE -Og)
  target_precompile_headers(sw_test_headers PRIVATE <algorithm> <atomic> <chrono> <condition_variable> <expected>
    <filesystem> <fstream> <functional> <map> <memory> <mutex> <optional> <random> <set> <span> <string> <thread>
    <vector> <fmt/format.h> <nlohmann/json.hpp> <gtest/gtest.h> <gmock/gmock.h>)
  get_target_property(options GTest::gtest INTERFACE_COMPILE_OPTIONS)
  if(options)
    set_target_properties(sw_test_headers PROPERTIES SLACKWATER_GTEST_OPTIONS "${options}")
  endif()
endfunction()

function(slackwater_compile_as_test target)
  if(NOT TARGET sw_test_headers)
    slackwater_test_headers()
  endif()
  get_target_property(kind ${target} TYPE)
  if(kind STREQUAL "STATIC_LIBRARY")  # only a program links it: g++ takes no headers compiled with another -fPI?
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIE)
  endif()
  target_compile_options(${target} PRIVATE -Og)
  # The headers hold what GTest defines, so it must be defined wherever they are used.
  target_compile_options(${target} PRIVATE $<TARGET_PROPERTY:sw_test_headers,SLACKWATER_GTEST_OPTIONS>)
  target_precompile_headers(${target} REUSE_FROM sw_test_headers)
endfunction()

# What every program of tests has, made of one test or of several.
function(slackwater_test_program program)
  slackwater_find(GTest)
  add_executable(${program})
  slackwater_compile_as_test(${program})
  target_link_libraries(${program} PRIVATE sw_flags GTest::gtest GTest::gmock)
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
endfunction()

# At most seven files at a time, in parts of equal size: larger ones would leave a processor without work at the end.
function(slackwater_test_sources program)
  target_sources(${program} PRIVATE ${ARGN})
  get_target_property(sources ${program} SOURCES)
  list(LENGTH sources count)
  math(EXPR units "(${count} + 6) / 7")
  math(EXPR batch "(${count} + ${units} - 1) / ${units}")
  set_target_properties(${program} PROPERTIES UNITY_BUILD ${SLACKWATER_UNITY} UNITY_BUILD_BATCH_SIZE ${batch})
endfunction()

function(slackwater_test name)
  cmake_parse_arguments(arg "" "PROGRAM" "SOURCES;USES;LABELS" ${ARGN})
  list(TRANSFORM arg_USES PREPEND sw_ OUTPUT_VARIABLE used)
  if(arg_PROGRAM AND SLACKWATER_UNITY)
    set(program ${arg_PROGRAM})
    if(NOT TARGET ${program})
      slackwater_test_program(${program})
      slackwater_test_sources(${program} ${PROJECT_SOURCE_DIR}/tests/support/test_main.cpp)
      target_compile_definitions(${program} PRIVATE
        SLACKWATER_TEST_PROGRAM="${program}"
        SLACKWATER_TEST_SOURCES="$<JOIN:$<TARGET_PROPERTY:${program},SLACKWATER_TEST_SOURCES>,$<COMMA>>")
    endif()
    foreach(source ${arg_SOURCES})
      set_property(TARGET ${program} APPEND PROPERTY SLACKWATER_TEST_SOURCES "${name}=${source}")
    endforeach()
    add_custom_command(TARGET ${program} POST_BUILD COMMAND ${CMAKE_COMMAND} -E create_symlink ${program} ${name}
      WORKING_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
    add_custom_target(${name} DEPENDS ${program})  # so that a build can ask for it by name
    add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_BINARY_DIR}/${name})
  else()
    set(program ${name})
    slackwater_test_program(${program})
    target_link_libraries(${program} PRIVATE GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${name})
  endif()
  slackwater_test_sources(${program} ${arg_SOURCES})
  target_link_libraries(${program} PRIVATE ${used})
  if("threads" IN_LIST arg_LABELS)
    add_dependencies(threads_tests ${name})
  endif()
  add_dependencies(all_tests ${name})  # with what the caller makes it depend on
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT 600)
endfunction()

function(slackwater_test_on_nfs)
  foreach(name ${ARGN})
    set(command ${name})
    get_target_property(kind ${name} TYPE)
    if(kind STREQUAL "UTILITY")  # compiled together with others
      set(command ${CMAKE_CURRENT_BINARY_DIR}/${name})
    endif()
    add_test(NAME ${name}_on_nfs COMMAND ${command})
    get_test_property(${name} LABELS labels)
    set_tests_properties(${name}_on_nfs PROPERTIES LABELS "${labels}" TIMEOUT 600 ENVIRONMENT "SLACKWATER_TEST_NFS=1")
  endforeach()
endfunction()

function(slackwater_mpirun variable)
  # Leaks are MPI's own here: what it and our store leave to the end of the process.
  set(words ${CMAKE_COMMAND} -E env "ASAN_OPTIONS=detect_leaks=0" ${MPIEXEC_EXECUTABLE})
  execute_process(COMMAND ${MPIEXEC_EXECUTABLE} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(version MATCHES "Open MPI|OpenRTE|PRRTE")
    list(APPEND words --oversubscribe --allow-run-as-root --bind-to none --timeout 120
      --mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none --mca oob_tcp_if_include lo)
  endif()
  set(${variable} ${words} ${MPIEXEC_NUMPROC_FLAG} PARENT_SCOPE)
endfunction()
