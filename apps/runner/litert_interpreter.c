/* LiteRT through the TfLite C interface. Prototypes are declared by hand: no header is needed to build, none can disagree with the library. */
#include "runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void object;

enum { BUILTIN_CUSTOM = 32, BUILTIN_DELEGATE = 51, ALLOW_DYNAMIC_TENSORS = 1 };

/* TfLiteXNNPackDelegateOptions grows with each version; it is returned through memory of the caller's, and its first field never moved. */
struct xnnpack_options { int32_t threads; char rest[1020]; };

struct int_array { int size; int data[]; };

/* TfLiteOpaqueDelegateBuilder */
struct delegate_builder {
  void *data;
  int (*prepare)(object *context, object *delegate, void *data);
  void *copy_from, *copy_to, *free_buffer;
  int64_t flags;
};

static struct {
  const char *(*version)(void);
  object *(*model_create)(const char *);
  void (*model_delete)(object *);
  object *(*options_create)(void);
  void (*options_delete)(object *);
  void (*set_threads)(object *, int32_t);
  void (*add_delegate)(object *, object *);
  void (*set_reporter)(object *, void (*)(void *, const char *, va_list), void *);
  object *(*create)(const object *, const object *);
  void (*destroy)(object *);
  int (*allocate)(object *);
  int (*resize)(object *, int32_t, const int *, int32_t);
  int (*invoke)(object *);
  int32_t (*input_count)(const object *), (*output_count)(const object *);
  object *(*input)(const object *, int32_t);
  const object *(*output)(const object *, int32_t);
  int (*type)(const object *);
  int32_t (*rank)(const object *), (*dim)(const object *, int32_t);
  size_t (*bytes)(const object *);
  void *(*data)(const object *);
  const char *(*name)(const object *);
  int (*copy_in)(object *, const void *, size_t);
  struct xnnpack_options (*xnnpack_defaults)(void); /* this and below: NULL where the library lacks them */
  object *(*xnnpack_create)(const struct xnnpack_options *);
  void (*xnnpack_delete)(object *);
  int32_t (*signature_count)(const object *);
  const char *(*signature_key)(const object *, int32_t);
  object *(*signature)(const object *, const char *);
  void (*signature_delete)(object *);
  size_t (*signature_inputs)(const object *), (*signature_outputs)(const object *);
  const char *(*signature_input_name)(const object *, int32_t), *(*signature_output_name)(const object *, int32_t);
  object *(*signature_input)(object *, const char *);
  const object *(*signature_output)(const object *, const char *);
  int (*open_dim)(const object *, int32_t, int32_t *);
  object *(*delegate_create)(const struct delegate_builder *);
  int (*modify)(object *, object *);
  int (*plan)(object *, struct int_array **);
  int (*node)(object *, int, object **, object **);
  int (*builtin)(const object *);
  const char *(*custom)(const object *);
} api;

static struct {
  object *model, *interpreter, *xnnpack;
  int input_count, output_count;
  int inputs[MAX_TENSORS], outputs[MAX_TENSORS]; /* by job index: the model's */
  char message[1024];                            /* what the runtime last complained of */
} session;

#define NEEDED(field, name) *(void **)&api.field = symbol(run, name, true)
#define MAYBE(field, name) *(void **)&api.field = symbol(run, name, false)

static void open_functions(struct run *run) {
  NEEDED(version, "TfLiteVersion");
  NEEDED(model_create, "TfLiteModelCreateFromFile");
  NEEDED(model_delete, "TfLiteModelDelete");
  NEEDED(options_create, "TfLiteInterpreterOptionsCreate");
  NEEDED(options_delete, "TfLiteInterpreterOptionsDelete");
  NEEDED(set_threads, "TfLiteInterpreterOptionsSetNumThreads");
  NEEDED(add_delegate, "TfLiteInterpreterOptionsAddDelegate");
  NEEDED(set_reporter, "TfLiteInterpreterOptionsSetErrorReporter");
  NEEDED(create, "TfLiteInterpreterCreate");
  NEEDED(destroy, "TfLiteInterpreterDelete");
  NEEDED(allocate, "TfLiteInterpreterAllocateTensors");
  NEEDED(resize, "TfLiteInterpreterResizeInputTensor");
  NEEDED(invoke, "TfLiteInterpreterInvoke");
  NEEDED(input_count, "TfLiteInterpreterGetInputTensorCount");
  NEEDED(output_count, "TfLiteInterpreterGetOutputTensorCount");
  NEEDED(input, "TfLiteInterpreterGetInputTensor");
  NEEDED(output, "TfLiteInterpreterGetOutputTensor");
  NEEDED(type, "TfLiteTensorType");
  NEEDED(rank, "TfLiteTensorNumDims");
  NEEDED(dim, "TfLiteTensorDim");
  NEEDED(bytes, "TfLiteTensorByteSize");
  NEEDED(data, "TfLiteTensorData");
  NEEDED(name, "TfLiteTensorName");
  NEEDED(copy_in, "TfLiteTensorCopyFromBuffer");
}

static void open_extras(struct run *run) {
  MAYBE(xnnpack_defaults, "TfLiteXNNPackDelegateOptionsDefault");
  MAYBE(xnnpack_create, "TfLiteXNNPackDelegateCreate");
  MAYBE(xnnpack_delete, "TfLiteXNNPackDelegateDelete");
  MAYBE(signature_count, "TfLiteInterpreterGetSignatureCount");
  MAYBE(signature_key, "TfLiteInterpreterGetSignatureKey");
  MAYBE(signature, "TfLiteInterpreterGetSignatureRunner");
  MAYBE(signature_delete, "TfLiteSignatureRunnerDelete");
  MAYBE(signature_inputs, "TfLiteSignatureRunnerGetInputCount");
  MAYBE(signature_outputs, "TfLiteSignatureRunnerGetOutputCount");
  MAYBE(signature_input_name, "TfLiteSignatureRunnerGetInputName");
  MAYBE(signature_output_name, "TfLiteSignatureRunnerGetOutputName");
  MAYBE(signature_input, "TfLiteSignatureRunnerGetInputTensor");
  MAYBE(signature_output, "TfLiteSignatureRunnerGetOutputTensor");
  MAYBE(open_dim, "TfLiteOpaqueTensorGetDimSignature");
  MAYBE(delegate_create, "TfLiteOpaqueDelegateCreate");
  MAYBE(modify, "TfLiteInterpreterModifyGraphWithDelegate");
  MAYBE(plan, "TfLiteOpaqueContextGetExecutionPlan");
  MAYBE(node, "TfLiteOpaqueContextGetNodeAndRegistration");
  MAYBE(builtin, "TfLiteOperatorGetBuiltInCode");
  MAYBE(custom, "TfLiteOperatorGetCustomName");
}

static void open_library(struct run *run) {
  open_functions(run);
  open_extras(run);
  snprintf(run->result.runtime_version, sizeof run->result.runtime_version, "%s (TfLite C)", api.version());
}

static void report(void *unused, const char *format, va_list args) {
  (void)unused;
  vsnprintf(session.message, sizeof session.message, format, args);
  session.message[strcspn(session.message, "\n")] = 0;
}

static const char *message(void) { return session.message[0] ? session.message : "the runtime gave no reason"; }

static void describe(const object *tensor, struct tensor *t) {
  t->dtype = litert_dtype(api.type(tensor));
  t->rank = api.rank(tensor) <= MAX_RANK ? api.rank(tensor) : MAX_RANK;
  for (int i = 0; i < t->rank; i++) t->dims[i] = api.dim(tensor, i);
  t->bytes = api.bytes(tensor);
}

/* Names that signature `runner` gives to the interpreter's own inputs or outputs; a signature of another subgraph names none. */
static void signature_names(object *runner, bool outputs, struct names *list) {
  size_t count = outputs ? api.signature_outputs(runner) : api.signature_inputs(runner);
  for (size_t i = 0; i < count; i++) {
    const char *name = outputs ? api.signature_output_name(runner, (int32_t)i) : api.signature_input_name(runner, (int32_t)i);
    const object *tensor = outputs ? api.signature_output(runner, name) : api.signature_input(runner, name);
    for (int k = 0; k < list->count; k++)
      if (tensor == (outputs ? api.output(session.interpreter, k) : (const object *)api.input(session.interpreter, k)) && !list->names[k]) list->names[k] = strdup(name);
  }
}

static struct names tensor_names(struct run *run, bool outputs, int count) {
  struct names list = {allocate(run, (size_t)count, sizeof *list.names), count};
  for (int i = 0; i < count; i++) list.names[i] = api.name(outputs ? api.output(session.interpreter, i) : api.input(session.interpreter, i));
  return list;
}

static void match_side(struct run *run, bool outputs) {
  struct job *job = &run->job;
  struct names lists[9];
  int count = outputs ? session.output_count : session.input_count, used = 0;
  int32_t signatures = api.signature && api.signature_count ? api.signature_count(session.interpreter) : 0;
  for (int32_t i = 0; i < signatures && used < 8; i++) {
    object *runner = api.signature(session.interpreter, api.signature_key(session.interpreter, i));
    if (!runner) continue;
    lists[used] = (struct names){allocate(run, (size_t)count, sizeof *lists[used].names), count};
    signature_names(runner, outputs, &lists[used++]);
    api.signature_delete(runner);
  }
  lists[used++] = tensor_names(run, outputs, count);
  if (outputs) match(run, "output", job->outputs, job->output_count, lists, used, count, session.outputs);
  else match(run, "input", job->inputs, job->input_count, lists, used, count, session.inputs);
}

/* A model whose dimension is open takes the job's; any other difference is an error. */
static void fit_input(struct run *run, int input) {
  const struct tensor *wanted = &run->job.inputs[input];
  object *tensor = api.input(session.interpreter, session.inputs[input]);
  struct tensor actual;
  int dims[MAX_RANK];
  describe(tensor, &actual);
  bool same = same_shape(wanted, &actual);
  for (int32_t i = 0, dim = 0; api.open_dim && i < actual.rank; i++)
    if (api.open_dim(tensor, i, &dim) == 0 && dim < 0) actual.dims[i] = -1;
  check_input(run, wanted, &actual);
  for (int i = 0; i < wanted->rank; i++) dims[i] = (int)wanted->dims[i];
  if (!same && api.resize(session.interpreter, session.inputs[input], dims, wanted->rank) != 0) fail(run, STAGE_INPUT, "input '%s' cannot be resized: %s", wanted->name, message());
}

static void check_outputs(struct run *run) {
  struct tensor actual;
  for (int i = 0; i < run->job.output_count; i++) {
    describe(api.output(session.interpreter, session.outputs[i]), &actual);
    check_output(run, &run->job.outputs[i], &actual);
  }
}

static object *make_xnnpack(struct run *run) {
  if (!api.xnnpack_create || !api.xnnpack_defaults) fail(run, STAGE_PREPARE, "this library has no XNNPACK delegate");
  struct xnnpack_options options = api.xnnpack_defaults();
  options.threads = run->job.threads;
  object *delegate = api.xnnpack_create(&options);
  if (!delegate) fail(run, STAGE_PREPARE, "the XNNPACK delegate could not be made");
  return delegate;
}

static object *make_interpreter(struct run *run, object *first, object *second) {
  object *options = api.options_create();
  api.set_threads(options, run->job.threads);
  api.set_reporter(options, report, NULL);
  if (first) api.add_delegate(options, first);
  if (second) api.add_delegate(options, second);
  object *interpreter = api.create(session.model, options);
  api.options_delete(options);
  return interpreter;
}

static int ignore(object *context, object *delegate, void *data) { return (void)context, (void)delegate, (void)data, 0; }

/* With a delegate that takes nothing, the runtime does not apply the one it would apply by default. */
static object *make_nothing(struct run *run) {
  static const struct delegate_builder builder = {.prepare = ignore, .flags = ALLOW_DYNAMIC_TENSORS};
  if (!api.delegate_create) fail(run, STAGE_PREPARE, "this library cannot be kept from using XNNPACK");
  return api.delegate_create(&builder);
}

static void load(struct run *run) {
  const char *accelerator = run->job.accelerator, *kernels = job_option(&run->job, "kernels");
  if (kernels && strcmp(kernels, "optimized") != 0) fail(run, STAGE_PREPARE, "option kernels: this library has no '%s' kernels", kernels);
  bool xnnpack = strcmp(accelerator, "xnnpack") == 0;
  if (!xnnpack && strcmp(accelerator, "cpu") != 0) fail(run, STAGE_PREPARE, "the runtime litert has no accelerator '%s' here; it has cpu and xnnpack", accelerator);
  char *path = path_join(run, run->job_dir, run->job.artifact);
  session.model = api.model_create(path);
  if (!session.model) fail(run, STAGE_MODEL, "%s is not a model that LiteRT %s can read", run->job.artifact, api.version());
  free(path);
  enter(run, STAGE_PREPARE);
  session.xnnpack = xnnpack ? make_xnnpack(run) : make_nothing(run);
  session.interpreter = make_interpreter(run, session.xnnpack, NULL);
  if (!session.interpreter) fail(run, STAGE_PREPARE, "the interpreter could not be made: %s", message());
  session.input_count = api.input_count(session.interpreter);
  session.output_count = api.output_count(session.interpreter);
  match_side(run, false);
  match_side(run, true);
  if (session.input_count != run->job.input_count) fail(run, STAGE_PREPARE, "the model has %d inputs, but the job names %d", session.input_count, run->job.input_count);
  for (int i = 0; i < run->job.input_count; i++) fit_input(run, i);
  if (api.allocate(session.interpreter) != 0) fail(run, STAGE_PREPARE, "tensors could not be allocated: %s", message());
  check_outputs(run);
}

static void release(struct run *run) {
  (void)run;
  api.destroy(session.interpreter);
  if (session.xnnpack && api.xnnpack_delete && strcmp(run->job.accelerator, "xnnpack") == 0) api.xnnpack_delete(session.xnnpack);
  api.model_delete(session.model);
  memset(&session, 0, sizeof session);
}

static void set_input(struct run *run, int input, const void *data) {
  const struct tensor *wanted = &run->job.inputs[input];
  object *tensor = api.input(session.interpreter, session.inputs[input]);
  if (api.bytes(tensor) != wanted->bytes) fail(run, STAGE_INPUT, "input '%s' takes %zu bytes, not %zu", wanted->name, api.bytes(tensor), wanted->bytes);
  if (api.copy_in(tensor, data, wanted->bytes) != 0) fail(run, STAGE_INPUT, "input '%s' could not be set: %s", wanted->name, message());
}

static void invoke(struct run *run) {
  if (api.invoke(session.interpreter) != 0) fail(run, STAGE_INVOKE, "%s", message());
}

static const void *output(struct run *run, int index, struct tensor *actual) {
  const object *tensor = api.output(session.interpreter, session.outputs[index]);
  const char *name = run->job.outputs[index].name;
  describe(tensor, actual);
  if (actual->dtype == DTYPE_NONE) fail(run, STAGE_OUTPUT, "output '%s' has the type %d, which has no name in the contract", name, api.type(tensor));
  const void *data = api.data(tensor);
  size_t bytes = actual->bytes;
  if (!tensor_size(actual) || actual->bytes != bytes || (!data && bytes)) fail(run, STAGE_OUTPUT, "output '%s' has %zu bytes, which its shape does not explain", name, bytes);
  return data;
}

struct plan_census { struct census operators; int partitions; bool done; };

/* Counts the operators of the main graph's plan, as a delegate that takes none of them. It is called for each graph, the main one first. */
static int count(object *context, object *delegate, void *data) {
  struct plan_census *census = data;
  struct int_array *plan = NULL;
  (void)delegate;
  if (census->done || api.plan(context, &plan) != 0 || !plan) return 0;
  census->done = true;
  for (int i = 0; i < plan->size; i++) {
    object *node = NULL, *kind = NULL;
    if (api.node(context, plan->data[i], &node, &kind) != 0 || !kind) continue;
    int code = api.builtin(kind);
    const char *custom = api.custom(kind);
    if (code == BUILTIN_DELEGATE) census->partitions++;
    else census_add(&census->operators, code == BUILTIN_CUSTOM && custom ? custom : litert_operator(code));
  }
  return 0;
}

/* A second interpreter is asked, with a counter before the delegate and one after it: the measured one stays as it was. */
static void place(struct run *run) {
  static struct plan_census before, after;
  struct delegate_builder first = {.data = &before, .prepare = count, .flags = ALLOW_DYNAMIC_TENSORS};
  struct delegate_builder second = {.data = &after, .prepare = count, .flags = ALLOW_DYNAMIC_TENSORS};
  bool xnnpack = strcmp(run->job.accelerator, "xnnpack") == 0;
  if (!api.delegate_create || !api.modify || !api.plan || !api.node || !api.builtin || !api.custom) return;
  object *interpreter = make_interpreter(run, api.delegate_create(&first), xnnpack ? make_xnnpack(run) : NULL);
  if (!interpreter || api.allocate(interpreter) != 0 || api.modify(interpreter, api.delegate_create(&second)) != 0) return;
  if (before.operators.total > 0) placement_set(&run->result.placement, xnnpack || after.partitions ? "xnnpack" : "", &before.operators, &after.operators, after.partitions);
}

const struct backend litert_interpreter = {open_library, load, release, set_input, invoke, output, place};
