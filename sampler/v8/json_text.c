/*
 * Decides where documents and members begin and end. Must not know what they mean. Any thread.
 */
#include "sampler/v8/json_text.h"

#include <string.h>

#define SCALAR_BYTES_MAX 65536 /* chosen: no name, title or message of an inspector comes near */

static bool
is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool
ef_json_frame_feed(struct ef_json_frame *frame, const char *data, size_t len, size_t *ret_len)
{
    for (size_t i = 0; i < len && !frame->bad; i++) {
        char c = data[i];
        if (frame->in_string) {
            if (frame->escaped)
                frame->escaped = false;
            else if (c == '\\')
                frame->escaped = true;
            else if (c == '"')
                frame->in_string = false;
        } else if (c == '{' || (c == '[' && frame->depth > 0)) {
            frame->depth++;
        } else if (frame->depth == 0) {
            frame->bad = !is_space(c);
        } else if (c == '"') {
            frame->in_string = true;
        } else if ((c == '}' || c == ']') && --frame->depth == 0) {
            *ret_len = i + 1;
            *frame = (struct ef_json_frame){0};
            return true;
        }
    }
    return false;
}

static const char *
skip_space(const char *at, const char *end)
{
    while (at < end && is_space(*at))
        at++;
    return at;
}

/* `at` stands on a quote; gives the place after the closing one, or end. */
static const char *
skip_string(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '\\')
            at++;
        else if (*at == '"')
            return at + 1;
    }
    return end;
}

/* Place after the value that begins at `at`. */
static const char *
skip_value(const char *at, const char *end)
{
    uint64_t depth = 0;

    while (at < end) {
        if (*at == '"') {
            at = skip_string(at, end);
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            if (depth == 0)
                return at;
            depth--;
            at++;
        } else if (depth == 0 && (*at == ',' || is_space(*at))) {
            return at;
        } else {
            at++;
            continue;
        }
        if (depth == 0)
            return at;
    }
    return end;
}

struct ef_json_text
ef_json_member(struct ef_json_text object, const char *name)
{
    static const struct ef_json_text absent = {NULL, 0};
    size_t name_len = strlen(name);
    const char *at = object.at;
    const char *end = object.at != NULL ? object.at + object.len : NULL;

    if (at == NULL)
        return absent;
    at = skip_space(at, end);
    if (at == end || *at++ != '{')
        return absent;
    for (;;) {
        at = skip_space(at, end);
        if (at == end || *at != '"')
            return absent;
        const char *key = at + 1;
        at = skip_string(at, end);
        bool match = (size_t)(at - key) == name_len + 1 && memcmp(key, name, name_len) == 0;
        at = skip_space(at, end);
        if (at == end || *at++ != ':')
            return absent;
        const char *value = skip_space(at, end);
        at = skip_value(value, end);
        if (match && at > value)
            return (struct ef_json_text){value, (size_t)(at - value)};
        at = skip_space(at, end);
        if (at == end || *at++ != ',')
            return absent;
    }
}

json_t *
ef_json_text_load(struct ef_json_text text, size_t bytes_max)
{
    if (text.at == NULL || text.len > bytes_max)
        return NULL;
    return json_loadb(text.at, text.len, JSON_DECODE_ANY, NULL);
}

bool
ef_json_text_int(struct ef_json_text text, int64_t *ret)
{
    json_t *value = ef_json_text_load(text, 32); /* 20 digits and a sign */
    bool ok = json_is_integer(value);

    if (ok)
        *ret = json_integer_value(value);
    json_decref(value);
    return ok;
}

/* Copies at most len - 1 bytes without cutting a character in two. */
static void
copy_cut(char *value, size_t len, const char *text)
{
    size_t n = strlen(text);

    if (n > len - 1) {
        n = len - 1;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
            n--;
    }
    memcpy(value, text, n);
    value[n] = '\0';
}

static bool
copy_string(const json_t *string, char *value, size_t len)
{
    const char *text = json_string_value(string);

    value[0] = '\0';
    if (text == NULL)
        return false;
    copy_cut(value, len, text);
    return true;
}

bool
ef_json_text_str(struct ef_json_text text, char *value, size_t len)
{
    json_t *string = ef_json_text_load(text, SCALAR_BYTES_MAX);
    bool ok = copy_string(string, value, len);

    json_decref(string);
    return ok;
}

bool
ef_json_tree_str(const json_t *object, const char *name, char *value, size_t len)
{
    return copy_string(json_object_get(object, name), value, len);
}
