/*
 * Decides which format a file has, and holds the table of formats. Must not know how a format looks
 * inside. Any thread.
 */
#include "proto/formats/formats.h"

#include <stdlib.h>
#include <string.h>

#include "proto/formats/internal.h"

static const struct ef_format_ops formats[] = {
#define X(name, suffix, content_type, binary, read, sniff, write, sentence)                        \
    {#name, suffix, content_type, sentence, binary, read, sniff, write},
#include "proto/formats/formats.def"
#undef X
};

const struct ef_format_ops *
ef_format_find(const char *name)
{
    for (size_t i = 0; i < EF_COUNT_OF(formats); i++) {
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    }
    return NULL;
}

const struct ef_format_ops *
ef_format_at(size_t index)
{
    return index < EF_COUNT_OF(formats) ? &formats[index] : NULL;
}

/* Other endings in use; names like "x.cpuprofile.json" come from tools that add ".json". */
static const struct {
    const char *suffix, *name;
} other_suffixes[] = {
    {".pb.gz", "pprof"},
    {".pb", "pprof"},
    {".prof", "pprof"},
    {".cpuprofile.json", "cpuprofile"},
    {".heapprofile.json", "heapprofile"},
    {".collapsed", "folded"},
};

static bool
ends_with(const char *text, const char *suffix)
{
    size_t len = strlen(text), suffix_len = strlen(suffix);

    return len >= suffix_len && strcmp(text + len - suffix_len, suffix) == 0;
}

static const struct ef_format_ops *
guess_by_name(const char *path)
{
    for (size_t i = 0; i < EF_COUNT_OF(other_suffixes); i++) {
        if (ends_with(path, other_suffixes[i].suffix))
            return ef_format_find(other_suffixes[i].name);
    }
    for (size_t i = 0; i < EF_COUNT_OF(formats); i++) {
        if (formats[i].read != NULL && ends_with(path, formats[i].suffix))
            return &formats[i];
    }
    return NULL;
}

const struct ef_format_ops *
ef_format_guess(const char *path, const uint8_t *data, size_t len)
{
    const struct ef_format_ops *found = path != NULL ? guess_by_name(path) : NULL;

    for (size_t i = 0; i < EF_COUNT_OF(formats) && found == NULL && len > 0; i++) {
        if (formats[i].sniff != NULL && formats[i].sniff(data, len))
            found = &formats[i];
    }
    return found;
}

static void
list_readable(struct ef_buf *text)
{
    for (size_t i = 0; i < EF_COUNT_OF(formats); i++) {
        if (formats[i].read != NULL)
            ef_buf_printf(text, "%s%s", text->len > 0 ? ", " : "", formats[i].name);
    }
}

static ef_rc
unknown_format(struct ef_err *err)
{
    struct ef_buf text;
    ef_rc rc;

    ef_buf_init(&text, 256);
    list_readable(&text);
    rc = ef_err_set(err, EF_ECORRUPT, "not a profile that can be read; tried %s",
                    text.data != NULL ? (const char *)text.data : "all formats");
    ef_buf_fini(&text);
    return rc;
}

ef_rc
ef_format_read(const struct ef_format_ops *format, const char *path, const uint8_t *data,
               size_t len, const struct ef_profile_limits *limits, struct ef_profile **ret_profile,
               struct ef_err *err)
{
    ef_rc rc;

    if (len == 0)
        rc = ef_err_set(err, EF_ECORRUPT, "the file is empty");
    else if (len > EF_FORMAT_INPUT_BYTES_MAX)
        rc = ef_err_set(err, EF_ELIMIT, "%zu bytes are more than the limit of %u", len,
                        EF_FORMAT_INPUT_BYTES_MAX);
    else if (format != NULL && format->read == NULL)
        rc = ef_err_set(err, EF_EUNSUP, "the format %s can only be written", format->name);
    else {
        if (format == NULL)
            format = ef_format_guess(path, data, len);
        rc = format != NULL ? format->read(data, len, limits, ret_profile, err)
                            : unknown_format(err);
    }
    if (rc != EF_OK && path != NULL)
        ef_err_prefix(err, "'%.128s'", path);
    return rc;
}
