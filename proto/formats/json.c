/*
 * Decides the form of the function table for programs. Stable: members are only added. Any thread.
 */
#include "proto/formats/internal.h"

#include <stdlib.h>
#include <string.h>

/* A row with what it is sorted by. */
struct entry {
    const struct ef_profile_row *row;
    const char *name, *file;
    uint32_t line;
    int64_t total;
    char address_name[80];
};

static int
compare_entries(const void *left, const void *right)
{
    const struct entry *a = *(const struct entry *const *)left;
    const struct entry *b = *(const struct entry *const *)right;
    int order;

    if (a->total != b->total)
        return a->total > b->total ? -1 : 1;
    order = strcmp(a->name, b->name);
    if (order == 0)
        order = strcmp(a->file, b->file);
    return order != 0 ? order : (a->line > b->line) - (a->line < b->line);
}

static void
fill_entry(const struct ef_profile *profile, const struct ef_profile_row *row, struct entry *entry)
{
    const struct ef_profile_function *function =
        &profile->functions[profile->frames[row->frame].function];

    entry->row = row;
    entry->name = ef_profile_frame_name(profile, row->frame, entry->address_name,
                                        sizeof(entry->address_name));
    entry->file = ef_profile_string(profile, function->file);
    entry->line = function->start_line;
    entry->total = row->total[profile->type_count - 1];
}

static void
put_values(struct ef_json *json, const char *key, const int64_t *values, uint32_t count)
{
    ef_json_key(json, key);
    ef_json_array(json);
    for (uint32_t i = 0; i < count; i++)
        ef_json_i64(json, values[i]);
    ef_json_array_end(json);
}

static void
put_head(struct ef_json *json, const struct ef_profile *profile)
{
    int64_t totals[EF_PROFILE_TYPES_MAX];

    ef_json_key(json, "sample_types");
    ef_json_array(json);
    for (uint32_t i = 0; i < profile->type_count; i++) {
        ef_json_object(json);
        ef_json_kstr(json, "type", ef_profile_string(profile, profile->types[i].type));
        ef_json_kstr(json, "unit", ef_profile_string(profile, profile->types[i].unit));
        ef_json_object_end(json);
        totals[i] = ef_profile_total(profile, i);
    }
    ef_json_array_end(json);
    put_values(json, "totals", totals, profile->type_count);
    ef_json_ku64(json, "samples", profile->samples);
}

static void
put_entries(struct ef_json *json, const struct ef_profile *profile, struct entry *const *order,
            size_t count)
{
    ef_json_key(json, "functions");
    ef_json_array(json);
    for (size_t i = 0; i < count; i++) {
        ef_json_object(json);
        ef_json_kstr(json, "name", order[i]->name);
        ef_json_kstr(json, "file", order[i]->file);
        ef_json_ku64(json, "line", order[i]->line);
        put_values(json, "self", order[i]->row->self, profile->type_count);
        put_values(json, "total", order[i]->row->total, profile->type_count);
        ef_json_object_end(json);
    }
    ef_json_array_end(json);
}

ef_rc
ef_format_json_write(const struct ef_profile *profile, const struct ef_format_about *about,
                     struct ef_buf *out, struct ef_err *err)
{
    struct ef_profile_row *rows = NULL;
    struct entry *entries = NULL, **order = NULL; /* Sorted by pointer: an entry holds its name. */
    struct ef_json json;
    size_t count = 0, len = out->len;
    ef_rc rc;

    (void)about;
    if (profile->type_count == 0)
        return ef_err_set(err, EF_EINVAL, "a profile without sample types cannot be written");
    rc = ef_profile_rows(profile, &rows, &count, err);
    if (rc != EF_OK)
        return rc;
    entries = calloc(count + 1, sizeof(*entries));
    order = calloc(count + 1, sizeof(*order));
    if (entries == NULL || order == NULL) {
        rc = ef_err_set(err, EF_ENOMEM, "out of memory while writing JSON");
        goto out;
    }
    for (size_t i = 0; i < count; i++) {
        fill_entry(profile, &rows[i], &entries[i]);
        order[i] = &entries[i];
    }
    ef_json_init(&json, out);
    ef_json_object(&json);
    put_head(&json, profile);
    qsort(order, count, sizeof(*order), compare_entries);
    put_entries(&json, profile, order, count);
    ef_json_object_end(&json);
    ef_buf_put_u8(out, '\n');
    rc = ef_buf_check(out, "the JSON profile", err);
    if (rc != EF_OK)
        out->len = len;
out:
    free(entries);
    free(order);
    free(rows);
    return rc;
}
