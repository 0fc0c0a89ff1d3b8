#include "runner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct { const char *name; size_t bytes; } kinds[DTYPES] = {
  [DTYPE_NONE] = {"", 0}, [FLOAT32] = {"float32", 4}, [FLOAT16] = {"float16", 2}, [FLOAT64] = {"float64", 8}, [INT8] = {"int8", 1},
  [UINT8] = {"uint8", 1}, [INT16] = {"int16", 2}, [UINT16] = {"uint16", 2}, [INT32] = {"int32", 4}, [UINT32] = {"uint32", 4},
  [INT64] = {"int64", 8}, [UINT64] = {"uint64", 8}, [BOOL] = {"bool", 1},
};

const char *dtype_name(enum dtype dtype) { return kinds[dtype].name; }

size_t dtype_bytes(enum dtype dtype) { return kinds[dtype].bytes; }

enum dtype dtype_named(const char *name) {
  for (int i = DTYPE_NONE + 1; i < DTYPES; i++)
    if (strcmp(kinds[i].name, name) == 0) return (enum dtype)i;
  return DTYPE_NONE;
}

bool tensor_size(struct tensor *t) {
  const uint64_t limit = (uint64_t)1 << (sizeof(size_t) > 4 ? 36 : 30);
  uint64_t bytes = dtype_bytes(t->dtype);
  for (int i = 0; i < t->rank; i++) {
    if (t->dims[i] < 0 || (t->dims[i] > 0 && bytes > limit / (uint64_t)t->dims[i])) return false;
    bytes *= (uint64_t)t->dims[i];
  }
  t->bytes = (size_t)bytes;
  return bytes <= limit;
}

const char *tensor_text(const struct tensor *t, char *out, size_t size) {
  size_t used = (size_t)snprintf(out, size, "%s[", dtype_name(t->dtype));
  for (int i = 0; i < t->rank && used < size; i++) used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? "," : "", (long long)t->dims[i]);
  if (used < size) snprintf(out + used, size - used, "]");
  return out;
}

bool same_shape(const struct tensor *a, const struct tensor *b) {
  return a->rank == b->rank && memcmp(a->dims, b->dims, (size_t)a->rank * sizeof a->dims[0]) == 0;
}

static bool agree(const struct tensor *wanted, const struct tensor *actual) {
  if (wanted->dtype != actual->dtype || wanted->rank != actual->rank) return false;
  for (int i = 0; i < wanted->rank; i++)
    if (actual->dims[i] >= 0 && wanted->dims[i] != actual->dims[i]) return false;
  return true;
}

void check_input(struct run *run, const struct tensor *wanted, const struct tensor *actual) {
  char want[160], have[160];
  if (!agree(wanted, actual))
    fail(run, STAGE_INPUT, "input '%s' is %s in the job, but the model takes %s", wanted->name, tensor_text(wanted, want, sizeof want), tensor_text(actual, have, sizeof have));
}

void check_output(struct run *run, const struct tensor *wanted, const struct tensor *actual) {
  char want[160], have[160];
  const char *how = job_option(&run->job, "match");
  if (how && strcmp(how, "index") == 0 && !agree(wanted, actual)) /* only names may be trusted to bring another shape */
    fail(run, STAGE_PREPARE, "output '%s' is %s in the job, but the model gives %s at its place", wanted->name, tensor_text(wanted, want, sizeof want), tensor_text(actual, have, sizeof have));
}

char *path_join(struct run *run, const char *folder, const char *name) {
  size_t size = strlen(folder) + strlen(name) + 2;
  char *path = allocate(run, size, 1);
  snprintf(path, size, "%s/%s", folder, name);
  return path;
}

void *read_file(struct run *run, const char *path, size_t bytes, const char *what) {
  FILE *file = fopen(path, "rb");
  if (!file) fail(run, STAGE_INPUT, "%s: %s: %s", what, path, strerror(errno));
  char *data = allocate(run, bytes + 1, 1); /* one more, to see that a file is too long */
  size_t got = fread(data, 1, bytes + 1, file);
  bool broken = ferror(file) != 0;
  fclose(file);
  if (broken) fail(run, STAGE_INPUT, "%s: %s could not be read", what, path);
  if (got != bytes) fail(run, STAGE_INPUT, "%s: %s has %s%zu bytes, but %zu are needed", what, path, got > bytes ? "more than " : "", got > bytes ? bytes : got, bytes);
  return data;
}

void write_file(struct run *run, const char *path, const void *data, size_t bytes) {
  int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail(run, STAGE_OUTPUT, "%s: %s", path, strerror(errno));
  for (size_t done = 0; done < bytes;) {
    ssize_t n = write(file, (const char *)data + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(run, STAGE_OUTPUT, "%s: %s", path, strerror(errno));
    done += (size_t)n;
  }
  if (close(file) != 0) fail(run, STAGE_OUTPUT, "%s: %s", path, strerror(errno));
}

/* Where `name` is in the list, or -1 when it is absent or not alone. */
static int find_once(const struct names *list, const char *name) {
  int found = -1;
  for (int i = 0; i < list->count; i++) {
    if (!list->names[i] || strcmp(list->names[i], name) != 0) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

static bool fits(const struct names *list, const struct tensor *wanted, int count, int *index) {
  for (int i = 0; i < count; i++) {
    if ((index[i] = find_once(list, wanted[i].runtime_name)) < 0) return false;
    for (int k = 0; k < i; k++)
      if (index[k] == index[i]) return false;
  }
  return count > 0;
}

static void append(char *out, size_t size, const char *name) {
  size_t used = strlen(out);
  snprintf(out + used, size - used, "%s%s", used ? ", " : "", name);
}

static bool has_names(const struct names *lists, int count) {
  for (int i = 0; i < count; i++)
    for (int k = 0; k < lists[i].count; k++)
      if (lists[i].names[k] && lists[i].names[k][0]) return true;
  return false;
}

void match(struct run *run, const char *side, const struct tensor *wanted, int count, const struct names *lists, int list_count, int known, int *index) {
  char asked[512] = "", found[512] = "";
  const char *how = job_option(&run->job, "match");
  bool by_index = how && strcmp(how, "index") == 0;
  if (how && !by_index && strcmp(how, "name") != 0) fail(run, STAGE_PREPARE, "option match: '%s' is neither name nor index", how);
  if (by_index || !has_names(lists, list_count)) {
    if (count != known) fail(run, STAGE_PREPARE, "the model has %d %ss, but the job names %d", known, side, count);
    for (int i = 0; i < count; i++) index[i] = i;
    return;
  }
  for (int i = 0; i < list_count; i++)
    if (fits(&lists[i], wanted, count, index)) return;
  for (int i = 0; i < count; i++) append(asked, sizeof asked, wanted[i].runtime_name);
  for (int i = 0; i < list_count; i++)
    for (int k = 0; k < lists[i].count; k++) append(found, sizeof found, lists[i].names[k] ? lists[i].names[k] : "");
  fail(run, STAGE_PREPARE, "%ss: the job wants [%s], but the runtime knows [%s]: name them in runtime_names", side, asked, found);
}
