# The kernels' sources are compiled on the user's machine, so they are installed with their headers.

# Adds a file, by its name below SOURCE, and its included files to the list named by RESULT.
function(bf16codecs_add_source source name result)
  set(files ${${result}})
  if(NOT name IN_LIST files)
    list(APPEND files "${name}")
    file(STRINGS "${source}/${name}" lines REGEX "^ *# *include +\"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^[^\"]*\"([^\"]+)\".*" "\\1" included "${line}")
      bf16codecs_add_source("${source}" "${included}" files)
    endforeach()
  endif()
  set(${result} ${files} PARENT_SCOPE)
endfunction()

# Installs them below DESTINATION, in folders that match their #include lines.
function(bf16codecs_install_kernels destination)
  get_filename_component(source "${CMAKE_CURRENT_FUNCTION_LIST_DIR}" DIRECTORY)
  file(GLOB files RELATIVE "${source}" "${source}/cuda/nvrtc/*")
  file(GLOB kernels RELATIVE "${source}" "${source}/cuda/*.cu")
  foreach(kernel IN LISTS kernels)
    bf16codecs_add_source("${source}" "${kernel}" files)
  endforeach()
  foreach(file IN LISTS files)
    get_filename_component(folder "${file}" DIRECTORY)
    install(FILES "${source}/${file}" DESTINATION "${destination}/${folder}")
  endforeach()
endfunction()
