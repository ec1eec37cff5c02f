# SPDX-License-Identifier: Apache-2.0
# stalloc::schemas: C++ headers made from schemas/*.fbs by flatc at build time; include as "trace_generated.h".
find_program(FLATC flatc REQUIRED)
find_path(FLATBUFFERS_INCLUDE flatbuffers/flatbuffers.h REQUIRED)
set(schema_out ${CMAKE_BINARY_DIR}/schemas)
set(schema_headers)
foreach(name trace plan)
  set(schema ${CMAKE_SOURCE_DIR}/schemas/${name}.fbs)
  set(header ${schema_out}/${name}_generated.h)
  add_custom_command(OUTPUT ${header} COMMAND ${FLATC} --cpp --scoped-enums -o ${schema_out} ${schema}
                     DEPENDS ${schema} VERBATIM)
  list(APPEND schema_headers ${header})
endforeach()
add_custom_target(stalloc_schema_headers DEPENDS ${schema_headers})
add_library(stalloc_schemas INTERFACE)
add_dependencies(stalloc_schemas stalloc_schema_headers)
target_include_directories(stalloc_schemas SYSTEM INTERFACE ${schema_out} ${FLATBUFFERS_INCLUDE})
add_library(stalloc::schemas ALIAS stalloc_schemas)
