# Whether and how the CUDA backend is built: RUNMAX_WITH_CUDA says so afterwards.
#
# Nothing else of the project depends on it: librunmax looks for librunmax_cuda.so at run time.

set(default OFF)  # minutes of nvcc are not what a project that adds this one expects
if(PROJECT_IS_TOP_LEVEL)
  set(default AUTO)
endif()
set(RUNMAX_CUDA ${default} CACHE STRING "The CUDA backend: AUTO (if nvcc is found), ON or OFF")
set(RUNMAX_CUDA_ARCHITECTURES "80;90a" CACHE STRING
  "GPUs to generate code for, as nvcc names them (80;90a); an entry 80+PTX adds portable code too")

# What librunmax and librunmax_cuda have to agree on: every header whose types cross between them,
# and the compiler. Not their sources: a changed kernel does not make another library.
file(GLOB headers CONFIGURE_DEPENDS include/runmax/*.h src/core/*.h src/device/*.h src/registry/*.h
  src/cuda/kernel_list.h)
set(text "${PROJECT_VERSION} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
foreach(header IN LISTS headers)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  file(SHA256 ${header} hash)
  string(APPEND text " ${hash}")
endforeach()
string(SHA256 hash "${text}")
string(SUBSTRING ${hash} 0 16 hash)
set(RUNMAX_BUILD_HASH_DIR ${CMAKE_CURRENT_BINARY_DIR}/generated)
file(CONFIGURE OUTPUT ${RUNMAX_BUILD_HASH_DIR}/build_hash.h CONTENT
"// Which build this is: what librunmax and librunmax_cuda have to agree on.
#pragma once

#define RUNMAX_BUILD_HASH \"${hash}\"
" @ONLY)

set(RUNMAX_WITH_CUDA OFF)
if(RUNMAX_CUDA AND NOT RUNMAX_SANITIZE)
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80)  # for the compiler check; targets name their own
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(RUNMAX_WITH_CUDA ON)
  elseif(NOT RUNMAX_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "RUNMAX_CUDA is ${RUNMAX_CUDA}, but there is no nvcc")
  endif()
endif()
set(RUNMAX_WITH_CUDA ${RUNMAX_WITH_CUDA} CACHE INTERNAL "Is the CUDA backend built?")
message(STATUS "CUDA backend: ${RUNMAX_WITH_CUDA}")

# The flags of nvcc for RUNMAX_CUDA_ARCHITECTURES, into a variable.
function(runmax_cuda_flags variable)
  set(flags)
  foreach(entry IN LISTS RUNMAX_CUDA_ARCHITECTURES)
    string(REPLACE "+PTX" "" architecture ${entry})
    list(APPEND flags -gencode=arch=compute_${architecture},code=sm_${architecture})
    if(NOT architecture STREQUAL entry)
      list(APPEND flags -gencode=arch=compute_${architecture},code=compute_${architecture})
    endif()
  endforeach()
  set(${variable} ${flags} PARENT_SCOPE)
endfunction()
