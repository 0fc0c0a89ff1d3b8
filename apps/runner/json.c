#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader {
  const char *start, *at, *end;
  const char *error;
};

static struct json *read_value(struct reader *r, int depth);

static void *refuse(struct reader *r, const char *why) {
  if (!r->error) r->error = why;
  return NULL;
}

size_t utf8_length(const unsigned char *s, size_t available) {
  static const unsigned char least[5] = {0, 0, 0x80, 0xA0, 0x90}; /* smallest second byte, so that no form is overlong */
  if (available == 0) return 0;
  if (s[0] < 0x80) return 1;
  size_t n = s[0] >= 0xC2 && s[0] <= 0xDF ? 2 : s[0] >= 0xE0 && s[0] <= 0xEF ? 3 : s[0] >= 0xF0 && s[0] <= 0xF4 ? 4 : 0;
  if (n == 0 || n > available) return 0;
  for (size_t i = 1; i < n; i++)
    if ((s[i] & 0xC0) != 0x80) return 0;
  if ((s[0] == 0xE0 || s[0] == 0xF0) && s[1] < least[n]) return 0;
  if ((s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF4 && s[1] > 0x8F)) return 0; /* surrogates; past U+10FFFF */
  return n;
}

static void skip_space(struct reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

static bool take(struct reader *r, char c) {
  if (r->at >= r->end || *r->at != c) return false;
  r->at++;
  return true;
}

static struct json *make(struct reader *r, enum json_kind kind) {
  struct json *value = calloc(1, sizeof *value);
  if (!value) return refuse(r, "out of memory");
  value->kind = kind;
  return value;
}

static int hex4(struct reader *r) {
  int code = 0;
  if (r->end - r->at < 4) return -1;
  for (int i = 0; i < 4; i++) {
    char c = *r->at++;
    int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
    if (digit < 0) return -1;
    code = code * 16 + digit;
  }
  return code;
}

static size_t put_utf8(char *out, int code) {
  if (code < 0x80) return out[0] = (char)code, 1;
  if (code < 0x800) return out[0] = (char)(0xC0 | code >> 6), out[1] = (char)(0x80 | (code & 63)), 2;
  if (code < 0x10000) return out[0] = (char)(0xE0 | code >> 12), out[1] = (char)(0x80 | (code >> 6 & 63)), out[2] = (char)(0x80 | (code & 63)), 3;
  out[0] = (char)(0xF0 | code >> 18), out[1] = (char)(0x80 | (code >> 12 & 63));
  return out[2] = (char)(0x80 | (code >> 6 & 63)), out[3] = (char)(0x80 | (code & 63)), 4;
}

/* The code point after \u, with its second half when it is a surrogate pair; -1 when malformed. */
static int unicode_escape(struct reader *r) {
  int high = hex4(r);
  if (high < 0xD800 || high > 0xDFFF) return high;
  if (high > 0xDBFF || !take(r, '\\') || !take(r, 'u')) return -1;
  int low = hex4(r);
  return low < 0xDC00 || low > 0xDFFF ? -1 : 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

static size_t read_escape(struct reader *r, char *out) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  char c = r->at < r->end ? *r->at++ : 0;
  const char *found = c ? strchr(from, c) : NULL;
  if (found) return *out = to[found - from], 1;
  int code = c == 'u' ? unicode_escape(r) : -1;
  if (code <= 0) return refuse(r, code == 0 ? "a NUL in a string" : "a malformed escape"), 0;
  return put_utf8(out, code);
}

/* Reads a string after its opening quote. Decoding never lengthens, so the distance to the closing quote bounds the result. */
static char *read_text(struct reader *r) {
  const char *closing = r->at;
  while (closing < r->end && *closing != '"') closing += *closing == '\\' ? 2 : 1;
  if (closing >= r->end) return refuse(r, "an unterminated string");
  char *text = malloc((size_t)(closing - r->at) + 1), *out = text;
  if (!text) return refuse(r, "out of memory");
  while (r->at < closing) {
    size_t n;
    if (*r->at == '\\') {
      r->at++;
      n = read_escape(r, out);
    } else {
      n = (unsigned char)*r->at < 0x20 ? 0 : utf8_length((const unsigned char *)r->at, (size_t)(closing - r->at));
      memcpy(out, r->at, n);
      r->at += n;
    }
    if (n == 0) return free(text), refuse(r, "a string that is not valid UTF-8");
    out += n;
  }
  *out = 0;
  r->at = closing + 1;
  return text;
}

static size_t digits(struct reader *r) {
  const char *from = r->at;
  while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
  return (size_t)(r->at - from);
}

static struct json *read_number(struct reader *r) {
  const char *from = r->at;
  char copy[64];
  bool integer = true;
  take(r, '-');
  if (!take(r, '0') && digits(r) == 0) return refuse(r, "not a value");
  if (take(r, '.')) {
    integer = false;
    if (digits(r) == 0) return refuse(r, "a number without digits after the point");
  }
  if (take(r, 'e') || take(r, 'E')) {
    integer = false;
    if (!take(r, '+')) take(r, '-');
    if (digits(r) == 0) return refuse(r, "a number without an exponent");
  }
  size_t length = (size_t)(r->at - from);
  if (length >= sizeof copy) return refuse(r, "a number that is too long");
  struct json *value = make(r, JSON_NUMBER);
  if (!value) return NULL;
  memcpy(copy, from, length);
  copy[length] = 0;
  value->number = strtod(copy, NULL);
  value->is_integer = integer && value->number >= -9007199254740992.0 && value->number <= 9007199254740992.0;
  return value;
}

static struct json *read_word(struct reader *r, const char *word, enum json_kind kind, bool truth) {
  size_t length = strlen(word);
  if ((size_t)(r->end - r->at) < length || memcmp(r->at, word, length) != 0) return refuse(r, "not a value");
  r->at += length;
  struct json *value = make(r, kind);
  if (value) value->truth = truth;
  return value;
}

/* One member with its key, or one element when `parent` is an array. */
static struct json *read_member(struct reader *r, const struct json *parent, int depth) {
  if (parent->kind == JSON_ARRAY) return read_value(r, depth);
  skip_space(r);
  if (!take(r, '"')) return refuse(r, "a member without a key");
  char *key = read_text(r);
  if (!key) return NULL;
  skip_space(r);
  struct json *value = json_get(parent, key) ? refuse(r, "a key that appears twice") : !take(r, ':') ? refuse(r, "a key without ':'") : read_value(r, depth);
  if (!value) return free(key), NULL;
  value->key = key;
  return value;
}

static struct json *read_members(struct reader *r, enum json_kind kind, char closing, int depth) {
  if (depth > JSON_MAX_DEPTH) return refuse(r, "nested too deep");
  struct json *parent = make(r, kind), **tail = parent ? &parent->child : NULL;
  if (!parent) return NULL;
  skip_space(r);
  if (take(r, closing)) return parent;
  do {
    struct json *value = kind == JSON_OBJECT && parent->count == JSON_MAX_KEYS ? refuse(r, "too many keys") : read_member(r, parent, depth);
    if (!value) return json_free(parent), NULL;
    *tail = value;
    tail = &value->next;
    parent->count++;
    skip_space(r);
  } while (take(r, ','));
  if (take(r, closing)) return parent;
  json_free(parent);
  return refuse(r, "a list or object that does not end");
}

static struct json *read_value(struct reader *r, int depth) {
  skip_space(r);
  if (r->at >= r->end) return refuse(r, "the text ends too early");
  if (take(r, '{')) return read_members(r, JSON_OBJECT, '}', depth + 1);
  if (take(r, '[')) return read_members(r, JSON_ARRAY, ']', depth + 1);
  if (*r->at == 't') return read_word(r, "true", JSON_BOOL, true);
  if (*r->at == 'f') return read_word(r, "false", JSON_BOOL, false);
  if (*r->at == 'n') return read_word(r, "null", JSON_NULL, false);
  if (*r->at != '"') return read_number(r);
  r->at++;
  char *text = read_text(r);
  struct json *value = text ? make(r, JSON_STRING) : NULL;
  if (!value) return free(text), NULL;
  value->text = text;
  return value;
}

struct json *json_parse(const char *text, size_t length, char *error, size_t error_size) {
  struct reader r = {text, text, text + length, NULL};
  struct json *value = read_value(&r, 0);
  skip_space(&r);
  if (value && r.at != r.end) {
    json_free(value);
    value = refuse(&r, "text after the end");
  }
  if (!value) snprintf(error, error_size, "%s at byte %zu", r.error ? r.error : "malformed", (size_t)(r.at - text));
  return value;
}

void json_free(struct json *value) {
  while (value) {
    struct json *next = value->next;
    json_free(value->child);
    free(value->key);
    free(value->text);
    free(value);
    value = next;
  }
}

const struct json *json_get(const struct json *object, const char *key) {
  if (!object || object->kind != JSON_OBJECT) return NULL;
  for (const struct json *member = object->child; member; member = member->next)
    if (member->key && strcmp(member->key, key) == 0) return member;
  return NULL;
}
