/* A strict JSON reader for untrusted text: UTF-8, bounded depth, no duplicate keys, no embedded NUL. */
#ifndef EDGEKIT_JSON_H
#define EDGEKIT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

enum { JSON_MAX_DEPTH = 32, JSON_MAX_KEYS = 1024 };

struct json {
  enum json_kind kind;
  char *key;        /* in an object, else NULL */
  char *text;       /* of a string */
  double number;    /* of a number */
  bool truth;       /* of a bool */
  bool is_integer;  /* the number is written without fraction and exponent, and is exact within 2^53 */
  size_t count;     /* children */
  struct json *child, *next;
};

/* NULL on an error, which is then told in `error` with its byte offset. The tree is freed by json_free. */
struct json *json_parse(const char *text, size_t length, char *error, size_t error_size);
void json_free(struct json *value);
const struct json *json_get(const struct json *object, const char *key);

/* Bytes of the UTF-8 sequence at `text` (1 to 4), or 0 when it is not valid. */
size_t utf8_length(const unsigned char *text, size_t available);

#endif
