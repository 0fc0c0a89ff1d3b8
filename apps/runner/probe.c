#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_setaffinity */
#endif
#include "runner.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool read_line(const char *format, int number, char *out, size_t size) {
  char path[128];
  snprintf(path, sizeof path, format, number);
  FILE *file = fopen(path, "re");
  if (!file) return false;
  bool got = fgets(out, (int)size, file) != NULL;
  fclose(file);
  if (got) out[strcspn(out, "\n")] = 0;
  return got;
}

static bool read_number(const char *format, int number, int64_t *value) {
  char text[64], *end;
  if (!read_line(format, number, text, sizeof text)) return false;
  *value = strtoll(text, &end, 10);
  return end != text;
}

static void read_zone(struct reading *r, int zone) {
  struct named *entry = &r->zones[r->zone_count];
  int64_t value;
  if (!read_number("/sys/class/thermal/thermal_zone%d/temp", zone, &value) || value < -50000 || value > 150000) return;
  if (!read_line("/sys/class/thermal/thermal_zone%d/type", zone, entry->name, sizeof entry->name - 8)) snprintf(entry->name, sizeof entry->name, "zone");
  for (int i = 0; i < r->zone_count; i++) {
    if (strcmp(r->zones[i].name, entry->name) != 0) continue;
    size_t used = strlen(entry->name);
    snprintf(entry->name + used, sizeof entry->name - used, "@%d", zone);
    break;
  }
  entry->value = value;
  r->zone_count++;
}

void probe_read(struct reading *r) {
  r->zone_count = r->clock_count = 0;
  for (int zone = 0; zone < MAX_ZONES; zone++) read_zone(r, zone);
  for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
    struct named *entry = &r->clocks[r->clock_count];
    if (!read_number("/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", cpu, &entry->value)) continue;
    snprintf(entry->name, sizeof entry->name, "%d", cpu);
    r->clock_count++;
  }
}

void probe_cool(const struct job *job) {
  static struct reading reading;
  int64_t start = now_ns();
  while (job->cools && (double)(now_ns() - start) < job->cool_wait_seconds * 1e9) {
    int64_t hottest = INT64_MIN;
    probe_read(&reading);
    for (int i = 0; i < reading.zone_count; i++)
      if (reading.zones[i].value > hottest) hottest = reading.zones[i].value;
    if (hottest <= job->cool_below) return;
    nanosleep(&(struct timespec){0, 200000000}, NULL);
  }
}

static int64_t wanted_frequency(const struct job *job, const cpu_set_t *allowed, bool big, int64_t frequency[MAX_CPUS]) {
  int count = 0;
  int64_t sorted[MAX_CPUS];
  for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
    frequency[cpu] = -1;
    if (!CPU_ISSET(cpu, allowed)) continue;
    if (!read_number("/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu, &frequency[cpu])) return -1;
    int at = count++;
    for (; at > 0 && (big ? sorted[at - 1] < frequency[cpu] : sorted[at - 1] > frequency[cpu]); at--) sorted[at] = sorted[at - 1];
    sorted[at] = frequency[cpu];
  }
  return count == 0 ? -1 : sorted[(job->threads < count ? job->threads : count) - 1];
}

void probe_pin(const struct job *job) {
  cpu_set_t allowed, chosen;
  int64_t frequency[MAX_CPUS];
  bool big = strcmp(job->affinity, "big") == 0;
  if (strcmp(job->affinity, "any") == 0 || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int64_t limit = wanted_frequency(job, &allowed, big, frequency);
  if (limit < 0) return;
  CPU_ZERO(&chosen);
  for (int cpu = 0; cpu < MAX_CPUS; cpu++)
    if (frequency[cpu] >= 0 && (big ? frequency[cpu] >= limit : frequency[cpu] <= limit)) CPU_SET(cpu, &chosen);
  sched_setaffinity(0, sizeof chosen, &chosen);
}

int probe_cpus(int cpus[MAX_CPUS]) {
  cpu_set_t allowed;
  int count = 0;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 0;
  for (int cpu = 0; cpu < MAX_CPUS; cpu++)
    if (CPU_ISSET(cpu, &allowed)) cpus[count++] = cpu;
  return count;
}

static int64_t peak_memory_of(int who) {
  struct rusage usage;
  return getrusage(who, &usage) == 0 ? (int64_t)usage.ru_maxrss * 1024 : -1;
}

int64_t probe_peak_memory(void) { return peak_memory_of(RUSAGE_SELF); }

int64_t probe_peak_memory_of_children(void) { return peak_memory_of(RUSAGE_CHILDREN); }
