// Preloaded into a trainer: on rank FAILING_RANK the first FAILING_READS reads of files with
// FAILING_PATH in their path fail with EIO, like a network file system that briefly loses its server.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_long failed;

static int fails(int file) {
  const char *rank = getenv("RANK"), *chosen = getenv("FAILING_RANK"), *part = getenv("FAILING_PATH"), *reads = getenv("FAILING_READS");
  if (!rank || !chosen || !part || !reads || strcmp(rank, chosen) != 0) {
    return 0;
  }
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, path, sizeof path - 1);
  if (length <= 0) {
    return 0;
  }
  path[length] = 0;
  if (!strstr(path, part) || atomic_fetch_add(&failed, 1) >= atol(reads)) {
    return 0;
  }
  errno = EIO;
  return 1;
}

ssize_t read(int file, void *buffer, size_t size) {
  static ssize_t (*next)(int, void *, size_t);
  if (!next) {
    next = dlsym(RTLD_NEXT, "read");
  }
  return fails(file) ? -1 : next(file, buffer, size);
}

ssize_t pread64(int file, void *buffer, size_t size, off_t offset) {
  static ssize_t (*next)(int, void *, size_t, off_t);
  if (!next) {
    next = dlsym(RTLD_NEXT, "pread64");
  }
  return fails(file) ? -1 : next(file, buffer, size, offset);
}
