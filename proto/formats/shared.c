/*
 * Decides what the formats have in common: names of frames, units, children of nodes. Must not know
 * any one of them. Any thread.
 */
#include "proto/formats/internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

bool
ef_format_is_object(const uint8_t *data, size_t len)
{
    size_t i = 0;

    while (i < len && isspace(data[i]))
        i++;
    return i < len && data[i] == '{';
}

bool
ef_format_has_key(const uint8_t *data, size_t len, const char *key)
{
    char quoted[32];
    const uint8_t *at = data, *end = data + len;
    size_t quoted_len = strlen(key) + 2;

    EF_ASSERT(quoted_len < sizeof(quoted));
    quoted[0] = quoted[quoted_len - 1] = '"';
    memcpy(quoted + 1, key, quoted_len - 2);
    while ((at = memmem(at, (size_t)(end - at), quoted, quoted_len)) != NULL) {
        at += quoted_len;
        while (at < end && isspace(*at))
            at++;
        if (at < end && *at == ':')
            return true;
    }
    return false;
}

ef_rc
ef_format_add_name(struct ef_profile *profile, const char *text, size_t len, uint32_t *ret_id,
                   struct ef_err *err)
{
    if (len == strlen(EF_PROFILE_ANONYMOUS) && memcmp(text, EF_PROFILE_ANONYMOUS, len) == 0)
        len = 0;
    return ef_profile_add_string(profile, text, len, ret_id, err);
}

ef_rc
ef_format_add_frame(struct ef_profile *profile, const char *name, size_t name_len, const char *file,
                    size_t file_len, uint32_t line, uint32_t column, uint32_t *ret_frame,
                    struct ef_err *err)
{
    static const char scheme[] = "file://";
    struct ef_profile_function function = {.start_line = line};
    struct ef_profile_frame frame = {.line = line, .column = column};
    ef_rc rc = ef_format_add_name(profile, name, name_len, &function.name, err);

    /* Node says file:///a.js in CPU profiles and /a.js in heap profiles for the same module. */
    if (file_len >= strlen(scheme) && memcmp(file, scheme, strlen(scheme)) == 0) {
        file += strlen(scheme);
        file_len -= strlen(scheme);
    }
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, file, file_len, &function.file, err);
    if (rc == EF_OK)
        rc = ef_profile_add_function(profile, &function, &frame.function, err);
    return rc == EF_OK ? ef_profile_add_frame(profile, &frame, ret_frame, err) : rc;
}

ef_rc
ef_format_refuse_negative(const struct ef_profile *profile, uint32_t type, const char *format,
                          struct ef_err *err)
{
    for (uint32_t i = 0; i < profile->node_count; i++) {
        if (profile->values[(size_t)i * profile->type_count + type] < 0)
            return ef_err_set(err, EF_EUNSUP,
                              "a %s cannot hold negative values; write pprof, folded or json",
                              format);
    }
    return EF_OK;
}

int64_t
ef_format_unit_ns(const char *unit)
{
    static const struct {
        const char *unit;
        int64_t ns;
    } units[] = {{"nanoseconds", 1},
                 {"microseconds", 1000},
                 {"milliseconds", 1000000},
                 {"seconds", 1000000000}};

    for (size_t i = 0; i < EF_COUNT_OF(units); i++) {
        if (strcmp(units[i].unit, unit) == 0)
            return units[i].ns;
    }
    return 0;
}

uint32_t
ef_format_type_with_unit(const struct ef_profile *profile, const char *unit)
{
    for (uint32_t i = 0; i < profile->type_count; i++) {
        if (strcmp(ef_profile_string(profile, profile->types[i].unit), unit) == 0)
            return i;
    }
    return EF_PROFILE_TYPES_MAX;
}

ef_rc
ef_format_links_init(struct ef_format_links *links, const struct ef_profile *profile,
                     struct ef_err *err)
{
    links->first_child = calloc(profile->node_count, sizeof(*links->first_child));
    links->next_sibling = calloc(profile->node_count, sizeof(*links->next_sibling));
    if (links->first_child == NULL || links->next_sibling == NULL) {
        ef_format_links_fini(links);
        return ef_err_set(err, EF_ENOMEM, "out of memory for the children of stacks");
    }
    for (uint32_t i = profile->node_count - 1; i > 0; i--) {
        uint32_t parent = profile->nodes[i].parent;
        links->next_sibling[i] = links->first_child[parent];
        links->first_child[parent] = i;
    }
    return EF_OK;
}

void
ef_format_links_fini(struct ef_format_links *links)
{
    free(links->first_child);
    free(links->next_sibling);
    *links = (struct ef_format_links){0};
}
