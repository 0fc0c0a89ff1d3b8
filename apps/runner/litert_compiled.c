/* LiteRT through its own C interface (CompiledModel), versions 2.1 and later. */
#include "runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void object;

enum { ACCELERATOR_CPU = 1, LOCK_READ = 0, LOCK_WRITE = 1 };

struct layout { unsigned rank : 7, has_strides : 1; int32_t dims[MAX_RANK]; uint32_t strides[MAX_RANK]; };
struct ranked_type { int element; struct layout layout; };

static struct {
  int (*create_environment)(int, const object *, object **);
  object *create_model; /* its parameters depend on the version */
  int (*create_options)(object **);
  int (*set_accelerators)(object *, int);
  int (*add_options)(object *, object *);
  int (*create_compiled)(object *, object *, object *, object **);
  int (*signature)(object *, size_t, object **);
  int (*input_count)(object *, size_t *), (*output_count)(object *, size_t *);
  int (*input_name)(object *, size_t, const char **), (*output_name)(object *, size_t, const char **);
  int (*input_tensor)(object *, size_t, object **), (*output_tensor)(object *, size_t, object **);
  int (*tensor_name)(object *, const char **);
  int (*ranked)(object *, struct ranked_type *);
  int (*resize)(object *, size_t, size_t, const int *, size_t);
  int (*input_needs)(object *, size_t, size_t, object **), (*output_needs)(object *, size_t, size_t, object **);
  int (*output_layouts)(object *, size_t, size_t, struct layout *, bool);
  int (*create_buffer)(object *, const struct ranked_type *, object *, object **);
  int (*packed)(object *, size_t *);
  int (*lock)(object *, void **, int), (*unlock)(object *);
  int (*run)(object *, size_t, size_t, object **, size_t, object **);
  void (*destroy_buffer)(object *), (*destroy_compiled)(object *), (*destroy_model)(object *), (*destroy_options)(object *);
  int (*create_opaque)(const char *, void *, void (*)(void *), object **); /* this and below: NULL where the library lacks them */
  int (*create_cpu)(object **), (*find_cpu)(object *, object **), (*set_cpu_threads)(object *, int);
  int (*fully)(object *, bool *);
  int (*signature_subgraph)(object *, object **), (*op_count)(object *, size_t *), (*op)(object *, size_t, object **), (*op_code)(object *, int *);
  bool model_takes_environment;
} api;

static struct {
  object *environment, *model, *options, *compiled, *signature;
  size_t input_count, output_count;
  int inputs[MAX_TENSORS], outputs[MAX_TENSORS]; /* by job index: the signature's */
  object *input_buffers[MAX_TENSORS], *output_buffers[MAX_TENSORS]; /* by signature index */
  struct ranked_type output_types[MAX_TENSORS];
  bool resized;
} session;

#define NEEDED(field, name) *(void **)&api.field = symbol(run, name, true)
#define MAYBE(field, name) *(void **)&api.field = symbol(run, name, false)

static void check(struct run *run, enum stage stage, int status, const char *what) {
  if (status != 0) fail(run, stage, "%s failed with status %d", what, status);
}

static void open_functions(struct run *run) {
  NEEDED(create_environment, "LiteRtCreateEnvironment");
  NEEDED(create_model, "LiteRtCreateModelFromFile");
  NEEDED(create_options, "LiteRtCreateOptions");
  NEEDED(set_accelerators, "LiteRtSetOptionsHardwareAccelerators");
  NEEDED(add_options, "LiteRtAddOpaqueOptions");
  NEEDED(create_compiled, "LiteRtCreateCompiledModel");
  NEEDED(signature, "LiteRtGetModelSignature");
  NEEDED(input_count, "LiteRtGetNumSignatureInputs");
  NEEDED(output_count, "LiteRtGetNumSignatureOutputs");
  NEEDED(input_name, "LiteRtGetSignatureInputName");
  NEEDED(output_name, "LiteRtGetSignatureOutputName");
  NEEDED(input_tensor, "LiteRtGetSignatureInputTensorByIndex");
  NEEDED(output_tensor, "LiteRtGetSignatureOutputTensorByIndex");
  NEEDED(tensor_name, "LiteRtGetTensorName");
  NEEDED(ranked, "LiteRtGetRankedTensorType");
  NEEDED(resize, "LiteRtCompiledModelResizeInputTensor");
  NEEDED(input_needs, "LiteRtGetCompiledModelInputBufferRequirements");
  NEEDED(output_needs, "LiteRtGetCompiledModelOutputBufferRequirements");
  NEEDED(output_layouts, "LiteRtGetCompiledModelOutputTensorLayouts");
  NEEDED(create_buffer, "LiteRtCreateManagedTensorBufferFromRequirements");
  NEEDED(packed, "LiteRtGetTensorBufferPackedSize");
  NEEDED(lock, "LiteRtLockTensorBuffer");
  NEEDED(unlock, "LiteRtUnlockTensorBuffer");
  NEEDED(run, "LiteRtRunCompiledModel");
  NEEDED(destroy_buffer, "LiteRtDestroyTensorBuffer");
  NEEDED(destroy_compiled, "LiteRtDestroyCompiledModel");
  NEEDED(destroy_model, "LiteRtDestroyModel");
  NEEDED(destroy_options, "LiteRtDestroyOptions");
}

static void open_library(struct run *run) {
  open_functions(run);
  MAYBE(create_opaque, "LiteRtCreateOpaqueOptions");
  MAYBE(create_cpu, "LiteRtCreateCpuOptions");
  MAYBE(find_cpu, "LiteRtFindCpuOptions");
  MAYBE(set_cpu_threads, "LiteRtSetCpuOptionsNumThread");
  MAYBE(fully, "LiteRtCompiledModelIsFullyAccelerated");
  MAYBE(signature_subgraph, "LiteRtGetSignatureSubgraph");
  MAYBE(op_count, "LiteRtGetNumSubgraphOps");
  MAYBE(op, "LiteRtGetSubgraphOp");
  MAYBE(op_code, "LiteRtGetOpCode");
  /* From 2.2 on a model is made within an environment; LiteRtCreateModelFromFd came with that change. */
  api.model_takes_environment = symbol(run, "LiteRtCreateModelFromFd", false) != NULL;
  snprintf(run->result.runtime_version, sizeof run->result.runtime_version, "%s (LiteRT C)", api.model_takes_environment ? "2.2 or later" : "2.1");
  check(run, STAGE_LIBRARY, api.create_environment(0, NULL, &session.environment), "LiteRtCreateEnvironment");
}

/* Threads and kernels, in the way of the version: typed setters up to 2.1.2, after that a text under the name "xnnpack". */
static void set_cpu_options(struct run *run) {
  const char *kernels = job_option(&run->job, "kernels");
  bool xnnpack = strcmp(run->job.accelerator, "xnnpack") == 0;
  int mode = xnnpack ? 0 : kernels && strcmp(kernels, "reference") == 0 ? 1 : 2;
  object *opaque = NULL, *cpu = NULL;
  if (!xnnpack && strcmp(run->job.accelerator, "cpu") != 0) fail(run, STAGE_PREPARE, "the runtime litert has no accelerator '%s' here; it has cpu and xnnpack", run->job.accelerator);
  if (kernels && (xnnpack || (mode == 2 && strcmp(kernels, "optimized") != 0))) fail(run, STAGE_PREPARE, "option kernels: no '%s' kernels with accelerator %s", kernels, run->job.accelerator);
  if (api.create_cpu && api.find_cpu && api.set_cpu_threads) {
    if (mode != 0) fail(run, STAGE_PREPARE, "this LiteRT cannot be kept from using XNNPACK");
    check(run, STAGE_PREPARE, api.create_cpu(&opaque), "LiteRtCreateCpuOptions");
    check(run, STAGE_PREPARE, api.find_cpu(opaque, &cpu), "LiteRtFindCpuOptions");
    check(run, STAGE_PREPARE, api.set_cpu_threads(cpu, run->job.threads), "LiteRtSetCpuOptionsNumThread");
  } else if (api.create_opaque) {
    char *text = allocate(run, 64, 1);
    snprintf(text, 64, mode ? "num_threads = %d\nkernel_mode = %d\n" : "num_threads = %d\n", run->job.threads, mode);
    check(run, STAGE_PREPARE, api.create_opaque("xnnpack", text, free, &opaque), "LiteRtCreateOpaqueOptions");
  } else {
    fail(run, STAGE_PREPARE, "this LiteRT has no way to set the number of threads");
  }
  check(run, STAGE_PREPARE, api.add_options(session.options, opaque), "LiteRtAddOpaqueOptions");
}

static void make_model(struct run *run) {
  char *path = path_join(run, run->job_dir, run->job.artifact);
  int status = api.model_takes_environment ? ((int (*)(object *, const char *, object **))(uintptr_t)api.create_model)(session.environment, path, &session.model)
                                           : ((int (*)(const char *, object **))(uintptr_t)api.create_model)(path, &session.model);
  if (status != 0) fail(run, STAGE_MODEL, "%s is not a model that this LiteRT can read (status %d)", run->job.artifact, status);
  free(path);
}

static object *tensor_of(struct run *run, bool outputs, size_t index) {
  object *tensor = NULL;
  check(run, STAGE_PREPARE, (outputs ? api.output_tensor : api.input_tensor)(session.signature, index, &tensor), "the signature's tensor");
  return tensor;
}

static void match_side(struct run *run, bool outputs) {
  size_t count = outputs ? session.output_count : session.input_count;
  struct names lists[2] = {{allocate(run, count, sizeof(char *)), (int)count}, {allocate(run, count, sizeof(char *)), (int)count}};
  for (size_t i = 0; i < count; i++) {
    check(run, STAGE_PREPARE, (outputs ? api.output_name : api.input_name)(session.signature, i, &lists[0].names[i]), "the signature's name");
    if (api.tensor_name(tensor_of(run, outputs, i), &lists[1].names[i]) != 0) lists[1].names[i] = "";
  }
  if (outputs) match(run, "output", run->job.outputs, run->job.output_count, lists, 2, (int)count, session.outputs);
  else match(run, "input", run->job.inputs, run->job.input_count, lists, 2, (int)count, session.inputs);
}

static void describe(const struct ranked_type *type, struct tensor *t) {
  t->dtype = litert_dtype(type->element);
  t->rank = type->layout.rank <= MAX_RANK ? (int)type->layout.rank : MAX_RANK;
  for (int i = 0; i < t->rank; i++) t->dims[i] = type->layout.dims[i];
}

static void make_input(struct run *run, int input) {
  const struct tensor *wanted = &run->job.inputs[input];
  size_t index = (size_t)session.inputs[input];
  struct ranked_type type;
  struct tensor actual = {0};
  object *needs = NULL;
  check(run, STAGE_PREPARE, api.ranked(tensor_of(run, false, index), &type), "LiteRtGetRankedTensorType");
  describe(&type, &actual);
  if (!same_shape(wanted, &actual) && wanted->rank == actual.rank) { /* the runtime resizes where the model leaves a dimension open, and refuses elsewhere */
    int dims[MAX_RANK];
    for (int i = 0; i < wanted->rank; i++) dims[i] = (int)wanted->dims[i];
    if (api.resize(session.compiled, 0, index, dims, (size_t)wanted->rank) != 0) check_input(run, wanted, &actual);
    for (int i = 0; i < wanted->rank; i++) actual.dims[i] = type.layout.dims[i] = dims[i];
    session.resized = true;
  }
  check_input(run, wanted, &actual);
  check(run, STAGE_PREPARE, api.input_needs(session.compiled, 0, index, &needs), "the input's buffer requirements");
  check(run, STAGE_PREPARE, api.create_buffer(session.environment, &type, needs, &session.input_buffers[index]), "the input's buffer");
}

static void make_outputs(struct run *run) {
  size_t count = session.output_count;
  bool open = session.resized;
  for (size_t i = 0; i < count; i++) {
    check(run, STAGE_PREPARE, api.ranked(tensor_of(run, true, i), &session.output_types[i]), "LiteRtGetRankedTensorType");
    for (unsigned d = 0; d < session.output_types[i].layout.rank; d++) open |= session.output_types[i].layout.dims[d] < 0;
  }
  struct layout *layouts = allocate(run, count, sizeof *layouts);
  if (open) check(run, STAGE_PREPARE, api.output_layouts(session.compiled, 0, count, layouts, true), "the outputs' layouts");
  for (size_t i = 0; i < count; i++) {
    object *needs = NULL;
    if (open) session.output_types[i].layout = layouts[i];
    check(run, STAGE_PREPARE, api.output_needs(session.compiled, 0, i, &needs), "the output's buffer requirements");
    check(run, STAGE_PREPARE, api.create_buffer(session.environment, &session.output_types[i], needs, &session.output_buffers[i]), "the output's buffer");
  }
  free(layouts);
}

static void load(struct run *run) {
  session.resized = false;
  make_model(run);
  enter(run, STAGE_PREPARE);
  check(run, STAGE_PREPARE, api.create_options(&session.options), "LiteRtCreateOptions");
  check(run, STAGE_PREPARE, api.set_accelerators(session.options, ACCELERATOR_CPU), "LiteRtSetOptionsHardwareAccelerators");
  set_cpu_options(run);
  int status = api.create_compiled(session.environment, session.model, session.options, &session.compiled);
  if (status != 0) fail(run, STAGE_PREPARE, "the model could not be compiled (status %d): an operator without kernel, or too little memory", status);
  check(run, STAGE_PREPARE, api.signature(session.model, 0, &session.signature), "LiteRtGetModelSignature");
  check(run, STAGE_PREPARE, api.input_count(session.signature, &session.input_count), "LiteRtGetNumSignatureInputs");
  check(run, STAGE_PREPARE, api.output_count(session.signature, &session.output_count), "LiteRtGetNumSignatureOutputs");
  if (session.input_count > MAX_TENSORS || session.output_count > MAX_TENSORS) fail(run, STAGE_PREPARE, "the model has more than %d inputs or outputs", MAX_TENSORS);
  match_side(run, false);
  match_side(run, true);
  if (session.input_count != (size_t)run->job.input_count) fail(run, STAGE_PREPARE, "the model has %zu inputs, but the job names %d", session.input_count, run->job.input_count);
  for (int i = 0; i < run->job.input_count; i++) make_input(run, i);
  make_outputs(run);
  for (int i = 0; i < run->job.output_count; i++) {
    struct tensor actual = {0};
    describe(&session.output_types[session.outputs[i]], &actual);
    check_output(run, &run->job.outputs[i], &actual);
  }
}

static void release(struct run *run) {
  (void)run;
  for (size_t i = 0; i < session.input_count; i++) api.destroy_buffer(session.input_buffers[i]);
  for (size_t i = 0; i < session.output_count; i++) api.destroy_buffer(session.output_buffers[i]);
  api.destroy_compiled(session.compiled);
  api.destroy_options(session.options);
  api.destroy_model(session.model);
}

static void set_input(struct run *run, int input, const void *data) {
  const struct tensor *wanted = &run->job.inputs[input];
  object *buffer = session.input_buffers[session.inputs[input]];
  size_t bytes = 0;
  void *memory = NULL;
  check(run, STAGE_INPUT, api.packed(buffer, &bytes), "LiteRtGetTensorBufferPackedSize");
  if (bytes != wanted->bytes) fail(run, STAGE_INPUT, "input '%s' takes %zu bytes, not %zu", wanted->name, bytes, wanted->bytes);
  check(run, STAGE_INPUT, api.lock(buffer, &memory, LOCK_WRITE), "LiteRtLockTensorBuffer");
  memcpy(memory, data, bytes);
  check(run, STAGE_INPUT, api.unlock(buffer), "LiteRtUnlockTensorBuffer");
}

static void invoke(struct run *run) {
  check(run, STAGE_INVOKE, api.run(session.compiled, 0, session.input_count, session.input_buffers, session.output_count, session.output_buffers), "LiteRtRunCompiledModel");
}

static const void *output(struct run *run, int index, struct tensor *actual) {
  size_t at = (size_t)session.outputs[index], bytes = 0;
  const char *name = run->job.outputs[index].name;
  void *memory = NULL;
  describe(&session.output_types[at], actual);
  if (actual->dtype == DTYPE_NONE) fail(run, STAGE_OUTPUT, "output '%s' has the type %d, which has no name in the contract", name, session.output_types[at].element);
  check(run, STAGE_OUTPUT, api.packed(session.output_buffers[at], &bytes), "LiteRtGetTensorBufferPackedSize");
  if (!tensor_size(actual) || actual->bytes != bytes) fail(run, STAGE_OUTPUT, "output '%s' has %zu bytes, which its shape does not explain", name, bytes);
  check(run, STAGE_OUTPUT, api.lock(session.output_buffers[at], &memory, LOCK_READ), "LiteRtLockTensorBuffer");
  api.unlock(session.output_buffers[at]); /* host memory: it stays where it is until the next run */
  return memory;
}

/* This interface says only whether everything was taken. Where a part was, it cannot be told how much: unknown then. */
static void place(struct run *run) {
  static struct census all, none;
  object *subgraph = NULL, *operator = NULL;
  size_t count = 0;
  bool fully = false, xnnpack = strcmp(run->job.accelerator, "xnnpack") == 0;
  int code = 0;
  if (!api.fully || !api.signature_subgraph || !api.op_count || !api.op || !api.op_code) return;
  if (api.fully(session.compiled, &fully) != 0 || fully != xnnpack) return;
  if (api.signature_subgraph(session.signature, &subgraph) != 0 || api.op_count(subgraph, &count) != 0) return;
  for (size_t i = 0; i < count; i++) {
    if (api.op(subgraph, i, &operator) != 0 || api.op_code(operator, &code) != 0) return;
    census_add(&all, litert_operator(code));
  }
  if (all.total > 0) placement_set(&run->result.placement, xnnpack ? "xnnpack" : "", &all, xnnpack ? &none : &all, xnnpack ? 1 : 0);
}

const struct backend litert_compiled = {open_library, load, release, set_input, invoke, output, place};
