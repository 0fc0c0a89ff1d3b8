/* runner JOB_DIR RESULT_DIR: executes one job as apps/CONTRACT.md says.
   The work is done in a child process, so that a runtime that crashes is reported like any other failure. */
#include "runner.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct run the_run; /* large; zero at start */

void enter(struct run *run, enum stage stage) { run->shared->stage = (int)stage; }

static void say(const char *text) {
  if (write(STDERR_FILENO, text, strlen(text)) < 0) return; /* talk only */
}

/* Nothing of a runtime is torn down: destructors of runtimes hang or crash, and the result is already complete. */
static void end(struct run *run, int stage, const char *error) __attribute__((noreturn));
static void end(struct run *run, int stage, const char *error) {
  run->shared->ended = true;
  bool written = result_write(run->result_dir, &run->job, &run->result, error ? stage_name(stage) : NULL, error ? error : "");
  if (error) {
    say("runner: ");
    say(error);
    say("\n");
  }
  if (!written) say("runner: result.json could not be written\n");
  _exit(error ? EXIT_STAGE + stage : written ? 0 : EXIT_STAGE + STAGE_OUTPUT);
}

void fail(struct run *run, enum stage stage, const char *format, ...) {
  static char error[4096];
  va_list args;
  va_start(args, format);
  vsnprintf(error, sizeof error, format, args);
  va_end(args);
  end(run, (int)stage, error);
}

void *allocate(struct run *run, size_t count, size_t size) {
  void *memory = calloc(count ? count : 1, size ? size : 1);
  if (!memory) fail(run, (enum stage)run->shared->stage, "out of memory: %zu times %zu bytes", count, size);
  return memory;
}

static const char *signal_text(int number) {
  switch (number) {
    case SIGSEGV: return "a bad memory access (SIGSEGV)";
    case SIGBUS: return "a bad memory access (SIGBUS)";
    case SIGILL: return "an instruction this processor does not have (SIGILL)";
    case SIGFPE: return "an arithmetic fault (SIGFPE)";
    case SIGABRT: return "an abort of the runtime (SIGABRT)";
    case SIGKILL: return "a kill, perhaps for want of memory (SIGKILL)";
    default: return "a signal";
  }
}

static void supervise(struct run *run, pid_t child) __attribute__((noreturn));
static void supervise(struct run *run, pid_t child) {
  int status;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) fail(run, STAGE_JOB, "waitpid: %s", strerror(errno));
  if (WIFEXITED(status) && run->shared->ended) _exit(WEXITSTATUS(status));
  enum stage stage = (enum stage)run->shared->stage;
  run->job.runtime = run->shared->runtime;
  memcpy(run->result.runtime_version, run->shared->runtime_version, sizeof run->result.runtime_version);
  run->result.peak_memory_bytes = probe_peak_memory_of_children();
  if (WIFEXITED(status)) fail(run, stage, "the runtime ended the process by itself with code %d", WEXITSTATUS(status));
  int number = WTERMSIG(status);
  double peak_mb = (double)run->result.peak_memory_bytes / 1e6;
  fail(run, stage, "the runtime died of %s, signal %d, after using up to %.0f MB of memory", signal_text(number), number, peak_mb);
}

static bool is_folder(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

int main(int argc, char **argv) {
  struct run *run = &the_run;
  if (argc != 3 || !is_folder(argv[1]) || !is_folder(argv[2])) {
    say("usage: runner JOB_DIR RESULT_DIR (two folders that exist)\n");
    return EXIT_USAGE;
  }
  setenv("ORT_DISABLE_TELEMETRY", "1", 0); /* ONNX Runtime 1.29 and newer reports what it runs, unless told before it is loaded */
  run->job_dir = argv[1];
  run->result_dir = argv[2];
  run->result.library_ns = run->result.load_cold_ns = run->result.load_warm_ns = run->result.peak_memory_bytes = -1;
  void *shared = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  static struct shared alone;
  run->shared = shared == MAP_FAILED ? &alone : shared;
  pid_t parent = getpid(), child = fork();
  if (child > 0) supervise(run, child);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_STAGE); /* it died before the line above */
  } /* where no process can be made, the work is done in this one */
  run_job(run);
  end(run, 0, NULL);
}
