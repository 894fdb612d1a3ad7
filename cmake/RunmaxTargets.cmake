# What every target of the project shares. No CMAKE_*_FLAGS are touched, so that a project which
# adds runmax as a subdirectory keeps its own.

add_library(runmax_options INTERFACE)
target_compile_features(runmax_options INTERFACE cxx_std_20 c_std_11)
# Fused multiply-adds are written by hand, so that results do not depend on the compiler's mood.
target_compile_options(runmax_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -ffp-contract=off>)
if(RUNMAX_WERROR)
  target_compile_options(runmax_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()

# A sanitizer has to see the whole build: every target from here on.
if(RUNMAX_SANITIZE)
  add_compile_options(-fsanitize=${RUNMAX_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${RUNMAX_SANITIZE})
endif()
# Likewise the fuzzers' coverage: they find their way by what they see of the code they run.
if(RUNMAX_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# A layer of the library: object files that only librunmax links.
function(runmax_layer name)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden C_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${name} PRIVATE runmax_options)
  target_include_directories(${name} PRIVATE
    ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
endfunction()
