# Settings that every target of the project shares.
add_library(stalloc_settings INTERFACE)
target_include_directories(stalloc_settings INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(stalloc_settings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Werror)
target_compile_definitions(stalloc_settings INTERFACE STALLOC_VERSION="${PROJECT_VERSION}")
if(STALLOC_SANITIZE)
  target_compile_options(stalloc_settings INTERFACE -fsanitize=${STALLOC_SANITIZE} -fno-omit-frame-pointer
                                                    -fno-sanitize-recover=all)
  target_link_options(stalloc_settings INTERFACE -fsanitize=${STALLOC_SANITIZE})
endif()
