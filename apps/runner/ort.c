/* ONNX Runtime through its C interface. OrtApi is a table of functions that only ever grows, so a slot's number holds for every later version. */
#include "runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void object;
typedef void *status; /* NULL: success */

enum { API_BASE = 12, API_ASSIGNMENT = 24 }; /* the first version with every slot used below; with those of the last line */

enum slot {
  GET_ERROR_CODE = 1, GET_ERROR_MESSAGE = 2, CREATE_ENV = 3, CREATE_SESSION = 7, RUN = 9, CREATE_OPTIONS = 10, SET_OPTIMIZATION = 23, SET_INTRA = 24, SET_INTER = 25,
  INPUT_COUNT = 30, OUTPUT_COUNT = 31, INPUT_TYPE = 33, OUTPUT_TYPE = 34, INPUT_NAME = 36, OUTPUT_NAME = 37, CREATE_TENSOR = 49, IS_TENSOR = 50, TENSOR_DATA = 51,
  CAST_TENSOR_INFO = 55, ELEMENT_TYPE = 60, RANK = 61, DIMS = 62, TYPE_AND_SHAPE = 65, CPU_MEMORY = 69, ALLOCATOR = 78,
  RELEASE_STATUS = 93, RELEASE_SESSION = 95, RELEASE_VALUE = 96, RELEASE_TYPE = 98, RELEASE_SHAPE = 99, RELEASE_OPTIONS = 100, CONFIG_ENTRY = 130, APPEND_PROVIDER = 216,
  ASSIGNMENT = 407, ASSIGNED_PROVIDER = 408, ASSIGNED_NODES = 409, NODE_OPERATOR = 412,
};

struct api_base { const void *const *(*api)(uint32_t); const char *(*version)(void); };

static struct {
  const struct api_base *base;
  const void *const *api;
  object *env, *memory, *allocator, *session;
  int input_count, output_count;
  int inputs[MAX_TENSORS], outputs[MAX_TENSORS]; /* by job index: the model's */
  const char *input_names[MAX_TENSORS], *output_names[MAX_TENSORS]; /* in the job's order */
  object *input_values[MAX_TENSORS], *output_values[MAX_TENSORS];
  void *input_data[MAX_TENSORS];
} ort;

#define CALL(slot, parameters, ...) (((status(*) parameters)(uintptr_t)ort.api[slot])(__VA_ARGS__))
#define RELEASE(slot, value) (((void (*)(object *))(uintptr_t)ort.api[slot])(value))

static const char *message(status s) { return ((const char *(*)(status))(uintptr_t)ort.api[GET_ERROR_MESSAGE])(s); }

static void check(struct run *run, enum stage stage, status s) {
  if (s) fail(run, stage, "%s", message(s));
}

static enum dtype element_dtype(int type) {
  static const enum dtype kinds[14] = {DTYPE_NONE, FLOAT32, UINT8, INT8, UINT16, INT16, INT32, INT64, DTYPE_NONE, BOOL, FLOAT16, FLOAT64, UINT32, UINT64};
  return type >= 0 && type < 14 ? kinds[type] : DTYPE_NONE;
}

static int element_type(enum dtype dtype) {
  for (int type = 1; type < 14; type++)
    if (element_dtype(type) == dtype) return type;
  return 0;
}

static void open_library(struct run *run) {
  const struct api_base *(*get)(void);
  *(void **)&get = symbol(run, "OrtGetApiBase", true);
  ort.base = get();
  ort.api = ort.base ? ort.base->api(API_BASE) : NULL;
  if (!ort.api) fail(run, STAGE_LIBRARY, "this ONNX Runtime is too old: interface version %d is needed", API_BASE);
  snprintf(run->result.runtime_version, sizeof run->result.runtime_version, "%s", ort.base->version());
  check(run, STAGE_LIBRARY, CALL(CREATE_ENV, (int, const char *, object **), 3, "edgekit", &ort.env));
  check(run, STAGE_LIBRARY, CALL(CPU_MEMORY, (int, int, object **), 1, 0, &ort.memory));
  check(run, STAGE_LIBRARY, CALL(ALLOCATOR, (object **), &ort.allocator));
}

static int optimization(struct run *run) {
  static const struct { const char *name; int level; } levels[] = {{"disabled", 0}, {"basic", 1}, {"extended", 2}, {"all", 99}};
  const char *wanted = job_option(&run->job, "graph_optimization");
  for (size_t i = 0; wanted && i < sizeof levels / sizeof levels[0]; i++)
    if (strcmp(levels[i].name, wanted) == 0) return levels[i].level;
  if (wanted) fail(run, STAGE_PREPARE, "option graph_optimization: '%s' is not disabled, basic, extended or all", wanted);
  return 99;
}

/* Options whose key begins with `prefix`, without it. */
static size_t prefixed(struct job *job, const char *prefix, const char **keys, const char **values) {
  size_t count = 0, length = strlen(prefix);
  for (int i = 0; i < job->option_count; i++) {
    if (strncmp(job->options[i].key, prefix, length) != 0) continue;
    job->options[i].read = true;
    keys[count] = job->options[i].key + length;
    values[count++] = job->options[i].value;
  }
  return count;
}

static const char *provider_name(const char *accelerator) {
  static const char *const names[][2] = {{"xnnpack", "XNNPACK"}, {"qnn", "QNN"}, {"coreml", "CoreML"}, {"vitisai", "VitisAI"}, {"openvino", "OpenVINO"}};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
    if (strcmp(names[i][0], accelerator) == 0) return names[i][1];
  return NULL;
}

static void append_provider(struct run *run, object *options) {
  const char *keys[MAX_TENSORS], *values[MAX_TENSORS], *accelerator = run->job.accelerator, *name = provider_name(accelerator);
  if (strcmp(accelerator, "cpu") == 0) return;
  size_t count = prefixed(&run->job, "provider.", keys, values);
  if (strcmp(accelerator, "nnapi") == 0) { /* the one provider with a function of its own */
    status (*nnapi)(object *, uint32_t);
    *(void **)&nnapi = symbol(run, "OrtSessionOptionsAppendExecutionProvider_Nnapi", false);
    if (!nnapi) fail(run, STAGE_PREPARE, "this ONNX Runtime has no NNAPI provider");
    check(run, STAGE_PREPARE, nnapi(options, count == 1 && strcmp(keys[0], "flags") == 0 ? (uint32_t)strtoul(values[0], NULL, 0) : 0));
    return;
  }
  if (!name) fail(run, STAGE_PREPARE, "the runtime onnxruntime has no accelerator '%s'", accelerator);
  check(run, STAGE_PREPARE, CALL(APPEND_PROVIDER, (object *, const char *, const char *const *, const char *const *, size_t), options, name, keys, values, count));
}

static void config_entry(struct run *run, object *options, const char *key, const char *value) {
  check(run, STAGE_PREPARE, CALL(CONFIG_ENTRY, (object *, const char *, const char *), options, key, value));
}

static object *make_options(struct run *run) {
  const char *keys[MAX_TENSORS], *values[MAX_TENSORS], *fallback = job_option(&run->job, "fallback");
  object *options = NULL;
  check(run, STAGE_PREPARE, CALL(CREATE_OPTIONS, (object **), &options));
  check(run, STAGE_PREPARE, CALL(SET_INTRA, (object *, int), options, run->job.threads));
  check(run, STAGE_PREPARE, CALL(SET_INTER, (object *, int), options, 1));
  check(run, STAGE_PREPARE, CALL(SET_OPTIMIZATION, (object *, int), options, optimization(run)));
  size_t count = prefixed(&run->job, "session.", keys, values);
  for (size_t i = 0; i < count; i++) config_entry(run, options, keys[i], values[i]);
  if (fallback && strcmp(fallback, "allow") != 0 && strcmp(fallback, "refuse") != 0) fail(run, STAGE_PREPARE, "option fallback: '%s' is neither allow nor refuse", fallback);
  if (fallback && strcmp(fallback, "refuse") == 0) config_entry(run, options, "session.disable_cpu_ep_fallback", "1");
  append_provider(run, options);
  return options;
}

static bool unreadable(status s) {
  int code = ((int (*)(status))(uintptr_t)ort.api[GET_ERROR_CODE])(s);
  return code == 3 || code == 4 || code == 7 || code == 10 || strstr(message(s), "Load model from") == message(s); /* no file, no model, protobuf, graph */
}

static status make_session(struct run *run, object *options, object **session) {
  char *path = path_join(run, run->job_dir, run->job.artifact);
  status s = CALL(CREATE_SESSION, (object *, const char *, object *, object **), ort.env, path, options, session);
  free(path);
  return s;
}

static void describe(struct run *run, const object *shape, struct tensor *t) {
  int type = 0;
  size_t rank = 0;
  check(run, STAGE_PREPARE, CALL(ELEMENT_TYPE, (const object *, int *), shape, &type));
  check(run, STAGE_PREPARE, CALL(RANK, (const object *, size_t *), shape, &rank));
  if (rank > MAX_RANK) fail(run, STAGE_PREPARE, "a tensor with %zu dimensions, more than %d", rank, MAX_RANK);
  check(run, STAGE_PREPARE, CALL(DIMS, (const object *, int64_t *, size_t), shape, t->dims, rank));
  t->dtype = element_dtype(type);
  t->rank = (int)rank;
}

static void describe_side(struct run *run, bool output, int index, struct tensor *t) {
  object *type = NULL;
  const object *shape = NULL;
  check(run, STAGE_PREPARE, CALL(output ? OUTPUT_TYPE : INPUT_TYPE, (object *, size_t, object **), ort.session, (size_t)index, &type));
  check(run, STAGE_PREPARE, CALL(CAST_TENSOR_INFO, (object *, const object **), type, &shape));
  if (!shape) fail(run, STAGE_PREPARE, "an %s of the model is not a tensor", output ? "output" : "input");
  describe(run, shape, t);
  RELEASE(RELEASE_TYPE, type);
}

static void match_side(struct run *run, bool output) {
  size_t count = 0;
  check(run, STAGE_PREPARE, CALL(output ? OUTPUT_COUNT : INPUT_COUNT, (object *, size_t *), ort.session, &count));
  if (count > MAX_TENSORS) fail(run, STAGE_PREPARE, "the model has more than %d inputs or outputs", MAX_TENSORS);
  struct names list = {allocate(run, count, sizeof(char *)), (int)count};
  for (size_t i = 0; i < count; i++)
    check(run, STAGE_PREPARE, CALL(output ? OUTPUT_NAME : INPUT_NAME, (object *, size_t, object *, const char **), ort.session, i, ort.allocator, &list.names[i]));
  const struct tensor *wanted = output ? run->job.outputs : run->job.inputs;
  int asked = output ? run->job.output_count : run->job.input_count, *index = output ? ort.outputs : ort.inputs;
  match(run, output ? "output" : "input", wanted, asked, &list, 1, (int)count, index);
  if (!output && asked != (int)count) fail(run, STAGE_PREPARE, "the model has %zu inputs, but the job names %d", count, asked);
  for (int i = 0; i < asked; i++) (output ? ort.output_names : ort.input_names)[i] = list.names[index[i]];
}

static void make_input(struct run *run, int input) {
  const struct tensor *wanted = &run->job.inputs[input];
  struct tensor actual = {0};
  describe_side(run, false, ort.inputs[input], &actual);
  check_input(run, wanted, &actual);
  ort.input_data[input] = allocate(run, wanted->bytes, 1);
  check(run, STAGE_PREPARE, CALL(CREATE_TENSOR, (object *, void *, size_t, const int64_t *, size_t, int, object **), ort.memory, ort.input_data[input], wanted->bytes,
                                 wanted->dims, (size_t)wanted->rank, element_type(wanted->dtype), &ort.input_values[input]));
}

static void load(struct run *run) {
  object *options = make_options(run);
  status s = make_session(run, options, &ort.session);
  if (s) fail(run, unreadable(s) ? STAGE_MODEL : STAGE_PREPARE, "%s", message(s));
  RELEASE(RELEASE_OPTIONS, options);
  enter(run, STAGE_PREPARE);
  match_side(run, false);
  match_side(run, true);
  for (int i = 0; i < run->job.input_count; i++) make_input(run, i);
  for (int i = 0; i < run->job.output_count; i++) {
    struct tensor actual = {0};
    describe_side(run, true, ort.outputs[i], &actual);
    check_output(run, &run->job.outputs[i], &actual);
  }
}

static void drop_outputs(struct run *run) {
  for (int i = 0; i < run->job.output_count; i++) {
    if (ort.output_values[i]) RELEASE(RELEASE_VALUE, ort.output_values[i]);
    ort.output_values[i] = NULL;
  }
}

static void release(struct run *run) {
  drop_outputs(run);
  for (int i = 0; i < run->job.input_count; i++) {
    RELEASE(RELEASE_VALUE, ort.input_values[i]);
    free(ort.input_data[i]);
  }
  RELEASE(RELEASE_SESSION, ort.session);
}

static void set_input(struct run *run, int input, const void *data) { memcpy(ort.input_data[input], data, run->job.inputs[input].bytes); }

static void invoke(struct run *run) {
  drop_outputs(run);
  check(run, STAGE_INVOKE, CALL(RUN, (object *, object *, const char *const *, object *const *, size_t, const char *const *, size_t, object **), ort.session, NULL,
                                ort.input_names, ort.input_values, (size_t)run->job.input_count, ort.output_names, (size_t)run->job.output_count, ort.output_values));
}

static const void *output(struct run *run, int index, struct tensor *actual) {
  object *value = ort.output_values[index], *shape = NULL;
  const char *name = run->job.outputs[index].name;
  int tensor = 0;
  void *data = NULL;
  check(run, STAGE_OUTPUT, CALL(IS_TENSOR, (object *, int *), value, &tensor));
  if (!tensor) fail(run, STAGE_OUTPUT, "output '%s' is not a tensor", name);
  check(run, STAGE_OUTPUT, CALL(TYPE_AND_SHAPE, (object *, object **), value, &shape));
  describe(run, shape, actual);
  RELEASE(RELEASE_SHAPE, shape);
  if (actual->dtype == DTYPE_NONE) fail(run, STAGE_OUTPUT, "output '%s' has a type that has no name in the contract", name);
  if (!tensor_size(actual)) fail(run, STAGE_OUTPUT, "output '%s' is too large", name);
  check(run, STAGE_OUTPUT, CALL(TENSOR_DATA, (object *, void **), value, &data));
  return data;
}

/* Nodes of the graph as the providers were asked to take it. */
static bool assignment(object *session, const char *provider, struct census *all, struct census *left, int *partitions) {
  const object *const *parts = NULL, *const *nodes = NULL;
  size_t part_count = 0, node_count = 0;
  if (CALL(ASSIGNMENT, (object *, const object *const **, size_t *), session, &parts, &part_count)) return false;
  for (size_t i = 0; i < part_count; i++) {
    const char *name = "", *kind = "";
    if (CALL(ASSIGNED_PROVIDER, (const object *, const char **), parts[i], &name) || CALL(ASSIGNED_NODES, (const object *, const object *const **, size_t *), parts[i], &nodes, &node_count)) return false;
    bool taken = provider && strncmp(name, provider, strlen(provider)) == 0;
    *partitions += taken;
    for (size_t n = 0; n < node_count; n++) {
      if (CALL(NODE_OPERATOR, (const object *, const char **), nodes[n], &kind)) return false;
      census_add(all, kind);
      if (!taken) census_add(left, kind);
    }
  }
  return true;
}

/* A session of its own, made to record which provider took which node. */
static void place(struct run *run) {
  static struct census all, left;
  int partitions = 0;
  object *session = NULL;
  const char *accelerator = run->job.accelerator, *provider = strcmp(accelerator, "nnapi") == 0 ? "Nnapi" : provider_name(accelerator);
  if (!ort.base->api(API_ASSIGNMENT)) return;
  ort.api = ort.base->api(API_ASSIGNMENT);
  object *options = make_options(run);
  config_entry(run, options, "session.record_ep_graph_assignment_info", "1");
  if (make_session(run, options, &session)) return;
  if (assignment(session, provider, &all, &left, &partitions) && all.total > 0) placement_set(&run->result.placement, provider ? accelerator : "", &all, &left, partitions);
}

const struct backend onnxruntime = {open_library, load, release, set_input, invoke, output, place};
