#include "runner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kinds are kept sorted; beyond MAX_KINDS only the total counts on. */
void census_add(struct census *census, const char *kind) {
  int at = 0;
  census->total++;
  while (at < census->count && strcmp(census->kinds[at].name, kind) < 0) at++;
  if (at < census->count && strcmp(census->kinds[at].name, kind) == 0) {
    census->kinds[at].nodes++;
    return;
  }
  char *copy = census->count < MAX_KINDS ? strdup(kind) : NULL;
  if (!copy) return;
  memmove(&census->kinds[at + 1], &census->kinds[at], (size_t)(census->count - at) * sizeof census->kinds[0]);
  census->kinds[at].name = copy;
  census->kinds[at].nodes = 1;
  census->count++;
}

static int nodes_of(const struct census *census, const char *kind) {
  for (int i = 0; i < census->count; i++)
    if (strcmp(census->kinds[i].name, kind) == 0) return census->kinds[i].nodes;
  return 0;
}

void placement_set(struct placement *p, const char *delegate, const struct census *all, const struct census *left, int partitions) {
  p->known = true;
  snprintf(p->delegate, sizeof p->delegate, "%s", delegate);
  p->total = all->total;
  p->nodes = all->total - left->total;
  p->partitions = partitions;
  for (int i = 0; i < all->count; i++)
    if (all->kinds[i].nodes > nodes_of(left, all->kinds[i].name)) p->taken[p->taken_count++] = all->kinds[i].name;
  for (int i = 0; i < left->count; i++) p->left[p->left_count++] = left->kinds[i].name;
}
