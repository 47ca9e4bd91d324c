// Writes the bytes of each variable of a file to a file of its name in a folder, and prints why not.

#include <netcdf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int error) {
  if (error == NC_NOERR) return;
  fprintf(stderr, "%s\n", nc_strerror(error));
  exit(1);
}

static size_t size_of(int file, int variable) {
  int rank, dimensions[NC_MAX_VAR_DIMS];
  nc_type type;
  size_t size, length;
  check(nc_inq_var(file, variable, NULL, &type, &rank, dimensions, NULL));
  check(nc_inq_type(file, type, NULL, &size));
  for (int i = 0; i < rank; ++i) {
    check(nc_inq_dimlen(file, dimensions[i], &length));
    size *= length;
  }
  return size;
}

static void read_variable(int file, int variable, const char* folder) {
  char name[NC_MAX_NAME + 1], path[8192];
  check(nc_inq_varname(file, variable, name));
  const size_t size = size_of(file, variable);
  void* const values = malloc(size ? size : 1);
  const int error = nc_get_var(file, variable, values);
  if (error != NC_NOERR) {
    printf("%s: %s\n", name, nc_strerror(error));
  } else {
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE* const out = fopen(path, "wb");
    if (out == NULL || fwrite(values, 1, size, out) != size || fclose(out) != 0) exit(2);
  }
  free(values);
}

int main(int argc, char** argv) {
  int file, n;
  if (argc != 3) return 2;
  check(nc_open(argv[1], NC_NOWRITE, &file));
  check(nc_inq_nvars(file, &n));
  for (int variable = 0; variable < n; ++variable) read_variable(file, variable, argv[2]);
  check(nc_close(file));
  return 0;
}
