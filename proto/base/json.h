/*
 * Writes JSON into a buffer, in order, without a tree in memory. The caller calls begin and end in
 * pairs; commas and escapes are done here. Numbers that are not finite become null. Text that is
 * not UTF-8 gets U+FFFD for each bad byte. Errors: the buffer's `failed` flag. One thread.
 */
#ifndef PROTO_BASE_JSON_H
#define PROTO_BASE_JSON_H

#include "proto/base/buf.h"

#define EF_JSON_DEPTH_MAX 64

struct ef_json {
    struct ef_buf *buf; /* borrowed */
    unsigned depth;
    bool first[EF_JSON_DEPTH_MAX];
    bool after_key;
};

void ef_json_init(struct ef_json *json, struct ef_buf *buf);
void ef_json_object(struct ef_json *json);
void ef_json_object_end(struct ef_json *json);
void ef_json_array(struct ef_json *json);
void ef_json_array_end(struct ef_json *json);
void ef_json_key(struct ef_json *json, const char *key);
void ef_json_str(struct ef_json *json, const char *text);
void ef_json_strn(struct ef_json *json, const char *text, size_t len);
void ef_json_i64(struct ef_json *json, int64_t value);
void ef_json_u64(struct ef_json *json, uint64_t value);
void ef_json_f64(struct ef_json *json,
                 double value); /* shortest of 6 to 17 digits that reads back the same */
void ef_json_bool(struct ef_json *json, bool value);
void ef_json_null(struct ef_json *json);

/* Key and value in one call, for objects. */
void ef_json_kstr(struct ef_json *json, const char *key, const char *text);
void ef_json_ki64(struct ef_json *json, const char *key, int64_t value);
void ef_json_ku64(struct ef_json *json, const char *key, uint64_t value);
void ef_json_kf64(struct ef_json *json, const char *key, double value);
void ef_json_kbool(struct ef_json *json, const char *key, bool value);

#endif
