# Installs library, headers and command, with a CMake package and a pkg-config file. Everything is
# relative to where the files lie, so that an installed tree may be moved.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(RUNMAX_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/runmax)

install(TARGETS runmax EXPORT runmaxTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET runmax_cuda)  # beside librunmax, which looks for it there
  install(TARGETS runmax_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY include/runmax DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/runmax)
install(EXPORT runmaxTargets NAMESPACE runmax:: DESTINATION ${RUNMAX_CMAKE_DIR})

configure_package_config_file(cmake/runmaxConfig.cmake.in runmaxConfig.cmake
  INSTALL_DESTINATION ${RUNMAX_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
# 0.x: a minor release may change the C++ API and the package; from 1.0 on SameMajorVersion.
write_basic_package_version_file(runmaxConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/runmaxConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/runmaxConfigVersion.cmake
  DESTINATION ${RUNMAX_CMAKE_DIR})

# pkg-config: the prefix is found from the file's own place. A static library needs what it was
# built with (Libs.private, which a shared one does not show to its users) and its macro.
file(RELATIVE_PATH RUNMAX_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
get_target_property(kind runmax TYPE)
set(RUNMAX_PC_CFLAGS "")
if(kind STREQUAL STATIC_LIBRARY)
  set(RUNMAX_PC_CFLAGS " -DRUNMAX_STATIC")
endif()
configure_file(cmake/runmax.pc.in runmax.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/runmax.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(TARGET runmax_cli)
  file(RELATIVE_PATH to_lib ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
  set_target_properties(runmax_cli PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib}")
  install(TARGETS runmax_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
