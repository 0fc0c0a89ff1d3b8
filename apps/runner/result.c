#include "runner.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const stages[STAGES] = {"job", "library", "model", "prepare", "input", "invoke", "output"};

const char *stage_name(int stage) { return stage >= 0 && stage < STAGES ? stages[stage] : "job"; }

static void put_text(FILE *out, const char *text) {
  const unsigned char *at = (const unsigned char *)text;
  size_t left = strlen(text);
  fputc('"', out);
  while (left) {
    size_t n = utf8_length(at, left);
    if (n == 0) fputc('?', out); /* a runtime's message may be cut inside a character */
    else if (*at == '"' || *at == '\\') fprintf(out, "\\%c", *at);
    else if (*at < 0x20) fprintf(out, "\\u%04x", *at);
    else fwrite(at, 1, n, out);
    n = n ? n : 1;
    at += n;
    left -= n;
  }
  fputc('"', out);
}

static void put_string(FILE *out, const char *key, const char *text) {
  fprintf(out, ",\n \"%s\": ", key);
  put_text(out, text);
}

static void put_number(FILE *out, const char *key, int64_t value) {
  if (value >= 0) fprintf(out, ",\n \"%s\": %lld", key, (long long)value);
}

static void put_series(FILE *out, const char *key, const struct series *series) {
  fprintf(out, ",\n \"%s\": [", key);
  for (size_t i = 0; i < series->count; i++) fprintf(out, "%s%lld", i ? "," : "", (long long)series->ns[i]);
  fputc(']', out);
}

static void put_named(FILE *out, const struct named *entries, int count) {
  fputc('{', out);
  for (int i = 0; i < count; i++) {
    if (i) fputs(", ", out);
    put_text(out, entries[i].name);
    fprintf(out, ": %lld", (long long)entries[i].value);
  }
  fputc('}', out);
}

static void put_reading(FILE *out, const char *when, const struct reading *reading) {
  fprintf(out, ",\n \"temperatures_%s\": ", when);
  put_named(out, reading->zones, reading->zone_count);
  fprintf(out, ",\n \"clocks_%s\": ", when);
  put_named(out, reading->clocks, reading->clock_count);
}

static void put_log(FILE *out, const struct result *result) {
  fputs(",\n \"log\": [", out);
  for (int i = 0; i < result->log_count; i++) {
    const struct reading *r = &result->log[i];
    fprintf(out, "%s\n  {\"run\": %d, \"temperatures\": ", i ? "," : "", r->run);
    put_named(out, r->zones, r->zone_count);
    fputs(", \"clocks\": ", out);
    put_named(out, r->clocks, r->clock_count);
    fputc('}', out);
  }
  fputc(']', out);
}

static void put_outputs(FILE *out, const struct job *job, const struct result *result) {
  fputs(",\n \"outputs\": [", out);
  for (size_t s = 0; s < result->output_samples; s++) {
    fprintf(out, "%s\n  [", s ? "," : "");
    for (int i = 0; i < job->output_count; i++) {
      const struct tensor *t = &result->outputs[s][i];
      fprintf(out, "%s{\"name\": ", i ? ", " : "");
      put_text(out, job->outputs[i].name);
      fprintf(out, ", \"dtype\": \"%s\", \"shape\": [", dtype_name(t->dtype));
      for (int d = 0; d < t->rank; d++) fprintf(out, "%s%lld", d ? "," : "", (long long)t->dims[d]);
      fprintf(out, "], \"file\": \"outputs/%zu-%d.raw\"}", s, i);
    }
    fputc(']', out);
  }
  fputc(']', out);
}

static void put_names(FILE *out, const char *key, const char *const *names, int count) {
  fprintf(out, ", \"%s\": [", key);
  for (int i = 0; i < count; i++) {
    if (i) fputs(", ", out);
    put_text(out, names[i]);
  }
  fputc(']', out);
}

static void put_placement(FILE *out, const struct placement *p) {
  fputs(",\n \"delegation\": ", out);
  if (!p->known) {
    fputs("null", out);
    return;
  }
  fputs("{\"delegate\": ", out);
  put_text(out, p->delegate);
  fprintf(out, ", \"nodes\": %d, \"total\": %d, \"partitions\": %d", p->nodes, p->total, p->partitions);
  put_names(out, "operators", p->taken, p->taken_count);
  put_names(out, "fallback", p->left, p->left_count);
  fputc('}', out);
}

static void put_result(FILE *out, const struct job *job, const struct result *result, const char *stage, const char *error) {
  fprintf(out, "{\n \"schema\": 1,\n \"status\": \"%s\"", stage ? "failed" : "ok");
  if (stage) put_string(out, "stage", stage);
  put_string(out, "error", error);
  put_string(out, "runtime", job->runtime ? job->runtime : "");
  put_string(out, "runtime_version", result->runtime_version);
  put_string(out, "runner_version", "native " RUNNER_VERSION);
  put_outputs(out, job, result);
  put_number(out, "library_ns", result->library_ns);
  put_number(out, "load_cold_ns", result->load_cold_ns);
  put_number(out, "load_warm_ns", result->load_warm_ns);
  put_series(out, "sample_ns", &result->samples);
  put_series(out, "warmup_ns", &result->warmup);
  put_series(out, "latency_ns", &result->latency);
  put_number(out, "peak_memory_bytes", result->peak_memory_bytes);
  put_reading(out, "before", &result->before);
  put_reading(out, "after", &result->after);
  put_log(out, result);
  fputs(",\n \"affinity\": [", out);
  for (int i = 0; i < result->cpu_count; i++) fprintf(out, "%s%d", i ? "," : "", result->cpus[i]);
  fputc(']', out);
  put_placement(out, &result->placement);
  fputs("\n}\n", out);
}

bool result_write(const char *result_dir, const struct job *job, const struct result *result, const char *stage, const char *error) {
  char part[4096], whole[4096];
  int a = snprintf(part, sizeof part, "%s/.result.json.part", result_dir), b = snprintf(whole, sizeof whole, "%s/result.json", result_dir);
  if (a < 0 || b < 0 || (size_t)a >= sizeof part || (size_t)b >= sizeof whole) return false;
  FILE *out = fopen(part, "we");
  if (!out) return false;
  put_result(out, job, result, stage, error);
  bool bad = fflush(out) != 0 || ferror(out) != 0;
  bad = fclose(out) != 0 || bad;
  if (!bad && rename(part, whole) == 0) return true;
  unlink(part);
  return false;
}
