/*
 * Decides the form of folded stacks: "root;child;leaf 123", one line each. The last space separates
 * the count, so names may hold spaces; what cannot be in a name is replaced. Only one value fits a
 * line: the profile's last type. Any thread.
 */
#include "proto/formats/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/limit.h"
#include "proto/base/utf8.h"

/* strtoll without its white space, plus sign and dependence on a final NUL. */
static bool
parse_count(const char *text, size_t len, int64_t *ret_count)
{
    bool negative = len > 0 && text[0] == '-';
    int64_t count = 0;

    if (len == (size_t)negative)
        return false;
    for (size_t i = negative; i < len; i++) {
        if (text[i] < '0' || text[i] > '9' || !ef_mul_i64(count, 10, &count) ||
            !ef_add_i64(count, negative ? '0' - text[i] : text[i] - '0', &count))
            return false;
    }
    *ret_count = count;
    return true;
}

/* Splits at the last space. False when there is none or no whole number after it. */
static bool
split_line(const char *line, size_t len, size_t *ret_stack_len, int64_t *ret_count)
{
    const char *space = memrchr(line, ' ', len);

    if (space == NULL)
        return false;
    *ret_stack_len = (size_t)(space - line);
    return parse_count(space + 1, len - *ret_stack_len - 1, ret_count);
}

static ef_rc
add_stack(struct ef_profile *profile, const char *at, size_t len, int64_t count, struct ef_err *err)
{
    uint32_t node = 0, frame;
    ef_rc rc = EF_OK;

    for (int depth = 0; len > 0 && rc == EF_OK; depth++) {
        const char *semicolon = memchr(at, ';', len);
        size_t name_len = semicolon != NULL ? (size_t)(semicolon - at) : len;
        if (depth == EF_PROFILE_DEPTH_MAX)
            return ef_err_set(err, EF_ELIMIT, "deeper than %d frames", EF_PROFILE_DEPTH_MAX);
        rc = ef_format_add_frame(profile, at, name_len, "", 0, 0, 0, &frame, err);
        if (rc == EF_OK)
            rc = ef_profile_add_node(profile, node, frame, &node, err);
        name_len += semicolon != NULL;
        at += name_len;
        len -= name_len;
    }
    return rc == EF_OK ? ef_profile_add_value(profile, node, 0, count, err) : rc;
}

static ef_rc
read_line(struct ef_profile *profile, const char *line, size_t len, struct ef_err *err)
{
    size_t stack_len;
    int64_t count;

    if (len > 0 && line[len - 1] == '\r')
        len--;
    if (len == 0)
        return EF_OK;
    if (!split_line(line, len, &stack_len, &count))
        return ef_err_set(err, EF_ECORRUPT, "no whole number after the last space");
    profile->samples++;
    return add_stack(profile, line, stack_len, count, err);
}

ef_rc
ef_format_folded_read(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
                      struct ef_profile **ret_profile, struct ef_err *err)
{
    struct ef_profile *profile = NULL;
    const char *at = (const char *)data;
    ef_rc rc = ef_profile_open(limits, &profile, err);

    if (rc == EF_OK)
        rc = ef_profile_add_type(profile, "samples", "count", err);
    for (uint64_t number = 1; rc == EF_OK && len > 0; number++) {
        const char *newline = memchr(at, '\n', len);
        size_t line_len = newline != NULL ? (size_t)(newline - at) : len;
        rc = read_line(profile, at, line_len, err);
        if (rc != EF_OK)
            ef_err_prefix(err, "folded: line %" PRIu64, number);
        line_len += newline != NULL;
        at += line_len;
        len -= line_len;
    }
    if (rc == EF_OK && profile->samples == 0)
        rc = ef_err_set(err, EF_ECORRUPT, "folded: no line with a stack");
    if (rc == EF_OK) {
        *ret_profile = profile;
        profile = NULL; /* moved to the caller */
    }
    ef_profile_free(profile);
    return rc;
}

bool
ef_format_folded_sniff(const uint8_t *data, size_t len)
{
    const char *text = (const char *)data;
    size_t stack_len;
    int64_t count;

    while (len > 0 && (*text == '\n' || *text == '\r')) {
        text++;
        len--;
    }
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\n')
            len = i; /* The first line decides. */
    }
    if (len > 0 && text[len - 1] == '\r')
        len--;
    return ef_utf8_valid(text, len) && split_line(text, len, &stack_len, &count);
}

/* A name as it may stand in a line. */
static ef_rc
add_plain_name(struct ef_profile *names, const char *name, uint32_t *ret_frame, struct ef_err *err)
{
    size_t len = strlen(name);
    char *plain = strdup(name);
    ef_rc rc;

    if (plain == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory while writing folded stacks");
    for (size_t i = 0; i < len; i++) {
        if (plain[i] == ';')
            plain[i] = ':';
        else if ((unsigned char)plain[i] < 0x20)
            plain[i] = ' ';
    }
    rc = ef_format_add_frame(names, plain, len, "", 0, 0, 0, ret_frame, err);
    free(plain);
    return rc;
}

/*
 * Makes a tree of names alone, so that stacks that differ only in lines or files become one line
 * and their values net out.
 */
static ef_rc
merge_by_name(const struct ef_profile *profile, struct ef_profile *names, uint32_t *frames,
              uint32_t *nodes, struct ef_err *err)
{
    uint32_t type = profile->type_count - 1;
    ef_rc rc = ef_profile_add_type(names, "value", "", err);

    for (uint32_t i = 1; i < profile->frame_count && rc == EF_OK; i++) {
        char buf[256];
        rc = add_plain_name(names, ef_profile_frame_name(profile, i, buf, sizeof(buf)), &frames[i],
                            err);
    }
    for (uint32_t i = 0; i < profile->node_count && rc == EF_OK; i++) {
        const struct ef_profile_node *node = &profile->nodes[i];
        if (i > 0)
            rc = ef_profile_add_node(names, nodes[node->parent], frames[node->frame], &nodes[i],
                                     err);
        if (rc == EF_OK)
            rc = ef_profile_add_value(names, nodes[i], 0,
                                      profile->values[(size_t)i * profile->type_count + type], err);
    }
    return rc;
}

static void
write_lines(const struct ef_profile *names, uint32_t *path, struct ef_buf *out)
{
    for (uint32_t i = 0; i < names->node_count && !out->failed; i++) {
        uint32_t depth = 0;
        if (names->values[i] == 0)
            continue;
        for (uint32_t at = i; at != 0; at = names->nodes[at].parent)
            path[depth++] = names->nodes[at].frame;
        while (depth > 0) {
            char buf[2];
            ef_buf_append_str(out, ef_profile_frame_name(names, path[--depth], buf, sizeof(buf)));
            if (depth > 0)
                ef_buf_put_u8(out, ';');
        }
        ef_buf_printf(out, " %" PRId64 "\n", names->values[i]);
    }
}

ef_rc
ef_format_folded_write(const struct ef_profile *profile, const struct ef_format_about *about,
                       struct ef_buf *out, struct ef_err *err)
{
    const struct ef_profile_limits no_limits = {UINT32_MAX, UINT32_MAX, SIZE_MAX};
    struct ef_profile *names = NULL;
    uint32_t *frames = calloc(profile->frame_count, sizeof(*frames));
    uint32_t *nodes = calloc(profile->node_count, sizeof(*nodes));
    size_t len = out->len;
    ef_rc rc;

    (void)about;
    if (profile->type_count == 0)
        rc = ef_err_set(err, EF_EINVAL, "a profile without sample types cannot be written");
    else if (frames == NULL || nodes == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "out of memory while writing folded stacks");
    else
        rc = ef_profile_open(&no_limits, &names, err);
    if (rc == EF_OK)
        rc = merge_by_name(profile, names, frames, nodes, err);
    if (rc == EF_OK) {
        write_lines(names, nodes, out); /* `nodes` has done its work and becomes the path. */
        rc = ef_buf_check(out, "the folded profile", err);
    }
    if (rc != EF_OK)
        out->len = len;
    ef_profile_free(names);
    free(frames);
    free(nodes);
    return rc;
}
