/*
 * Decides escapes, commas and number forms of all JSON we write. One thread per writer.
 */
#include "proto/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/utf8.h"

void
ef_json_init(struct ef_json *json, struct ef_buf *buf)
{
    *json = (struct ef_json){.buf = buf};
    json->first[0] = true;
}

static void
separate(struct ef_json *json)
{
    if (json->after_key) {
        json->after_key = false;
        return;
    }
    if (!json->first[json->depth])
        ef_buf_put_u8(json->buf, ',');
    json->first[json->depth] = false;
}

static void
begin(struct ef_json *json, char bracket)
{
    separate(json);
    ef_buf_put_u8(json->buf, (uint8_t)bracket);
    EF_ASSERT(json->depth + 1 < EF_JSON_DEPTH_MAX);
    json->depth++;
    json->first[json->depth] = true;
}

static void
end(struct ef_json *json, char bracket)
{
    EF_ASSERT(json->depth > 0);
    json->depth--;
    ef_buf_put_u8(json->buf, (uint8_t)bracket);
}

void
ef_json_object(struct ef_json *json)
{
    begin(json, '{');
}

void
ef_json_object_end(struct ef_json *json)
{
    end(json, '}');
}

void
ef_json_array(struct ef_json *json)
{
    begin(json, '[');
}

void
ef_json_array_end(struct ef_json *json)
{
    end(json, ']');
}

static size_t
utf8_len(const char *text, size_t left)
{
    unsigned char c = (unsigned char)*text;
    size_t len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

    if (c == 0)
        return 1;
    return len <= left && ef_utf8_valid(text, len) ? len : 0;
}

static void
put_string(struct ef_buf *buf, const char *text, size_t len)
{
    size_t from = 0; /* start of the run that needs no escape */

    ef_buf_put_u8(buf, '"');
    for (size_t i = 0; i < len;) {
        unsigned char c = (unsigned char)text[i];
        size_t step = c < 0x80 ? 1 : utf8_len(text + i, len - i);
        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f && step > 0) {
            i += step;
            continue;
        }
        ef_buf_append(buf, text + from, i - from);
        if (step == 0)
            ef_buf_append_str(buf, "\xef\xbf\xbd");
        else if (c == '"' || c == '\\')
            ef_buf_append(buf, (const char[]){'\\', (char)c}, 2);
        else if (c == '\n')
            ef_buf_append_str(buf, "\\n");
        else if (c == '\t')
            ef_buf_append_str(buf, "\\t");
        else
            ef_buf_printf(buf, "\\u%04x", c);
        i++;
        from = i;
    }
    ef_buf_append(buf, text + from, len - from);
    ef_buf_put_u8(buf, '"');
}

void
ef_json_key(struct ef_json *json, const char *key)
{
    separate(json);
    put_string(json->buf, key, strlen(key));
    ef_buf_put_u8(json->buf, ':');
    json->after_key = true;
}

void
ef_json_strn(struct ef_json *json, const char *text, size_t len)
{
    separate(json);
    put_string(json->buf, text, len);
}

void
ef_json_str(struct ef_json *json, const char *text)
{
    ef_json_strn(json, text, strlen(text));
}

void
ef_json_i64(struct ef_json *json, int64_t value)
{
    separate(json);
    ef_buf_printf(json->buf, "%" PRId64, value);
}

void
ef_json_u64(struct ef_json *json, uint64_t value)
{
    separate(json);
    ef_buf_printf(json->buf, "%" PRIu64, value);
}

void
ef_json_f64(struct ef_json *json, double value)
{
    char text[40];

    if (!isfinite(value)) {
        ef_json_null(json);
        return;
    }
    separate(json);
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    ef_buf_append_str(json->buf, text);
}

void
ef_json_bool(struct ef_json *json, bool value)
{
    separate(json);
    ef_buf_append_str(json->buf, value ? "true" : "false");
}

void
ef_json_null(struct ef_json *json)
{
    separate(json);
    ef_buf_append_str(json->buf, "null");
}

void
ef_json_kstr(struct ef_json *json, const char *key, const char *text)
{
    ef_json_key(json, key);
    ef_json_str(json, text);
}

void
ef_json_ki64(struct ef_json *json, const char *key, int64_t value)
{
    ef_json_key(json, key);
    ef_json_i64(json, value);
}

void
ef_json_ku64(struct ef_json *json, const char *key, uint64_t value)
{
    ef_json_key(json, key);
    ef_json_u64(json, value);
}

void
ef_json_kf64(struct ef_json *json, const char *key, double value)
{
    ef_json_key(json, key);
    ef_json_f64(json, value);
}

void
ef_json_kbool(struct ef_json *json, const char *key, bool value)
{
    ef_json_key(json, key);
    ef_json_bool(json, value);
}
