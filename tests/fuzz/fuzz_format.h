/*
 * What the fuzz targets of profile formats share: whatever is read must satisfy the model's
 * invariants, and what is then written must be read again with the same totals.
 */
#ifndef TESTS_FUZZ_FUZZ_FORMAT_H
#define TESTS_FUZZ_FUZZ_FORMAT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/formats/formats.h"

/* Small, so that the fuzzer finds their edges. */
static const struct ef_profile_limits ef_fuzz_limits = {4096, 1024, 1u << 20};

static inline void
ef_fuzz_require(bool good, const char *what, const struct ef_err *err)
{
    if (good)
        return;
    fprintf(stderr, "fuzz: %s: %s\n", what, err->msg);
    abort();
}

static inline void
ef_fuzz_check_model(const struct ef_profile *profile)
{
    struct ef_err err = {0};
    struct ef_profile_row *rows = NULL;
    size_t count = 0;

    for (uint32_t i = 1; i < profile->node_count; i++) {
        ef_fuzz_require(profile->nodes[i].parent < i, "a parent comes after its child", &err);
        ef_fuzz_require(profile->nodes[i].frame > 0 &&
                            profile->nodes[i].frame < profile->frame_count,
                        "a node has no frame", &err);
    }
    ef_fuzz_require(ef_profile_rows(profile, &rows, &count, &err) == EF_OK, "no rows", &err);
    free(rows);
}

/* The writer may refuse (wrong unit, negative values); what it writes must be readable. */
static inline void
ef_fuzz_write_and_read(const struct ef_profile *profile, const struct ef_format_ops *format)
{
    const struct ef_format_about about = {.name = "n", .build = "b", .program = "p"};
    struct ef_profile *again = NULL;
    struct ef_err err = {0};
    struct ef_buf out;
    ef_rc rc;

    ef_buf_init(&out, 64u << 20);
    if (format->write(profile, &about, &out, &err) == EF_OK && format->read != NULL &&
        out.len > 0) {
        rc = format->read(out.data, out.len, &ef_profile_limits_default, &again, &err);
        ef_fuzz_require(rc == EF_OK, format->name, &err);
        ef_fuzz_require(ef_profile_total(profile, profile->type_count - 1) ==
                                ef_profile_total(again, again->type_count - 1) ||
                            strcmp(format->name, "cpuprofile") == 0 ||
                            strcmp(format->name, "heapprofile") == 0,
                        "the total differs", &err);
    }
    ef_profile_free(again);
    ef_buf_fini(&out);
}

static inline void
ef_fuzz_format(const char *name, const uint8_t *data, size_t len)
{
    const struct ef_format_ops *format = ef_format_find(name);
    struct ef_profile *profile = NULL;
    struct ef_err err = {0};
    ef_rc rc;

    format->sniff(data, len);
    ef_format_guess(NULL, data, len);
    rc = format->read(data, len, &ef_fuzz_limits, &profile, &err);
    if (rc != EF_OK) {
        ef_fuzz_require(profile == NULL && err.rc == rc && err.msg[0] != '\0',
                        "an error without its text", &err);
        return;
    }
    ef_fuzz_check_model(profile);
    ef_fuzz_write_and_read(profile, format);
    ef_fuzz_write_and_read(profile, ef_format_find("pprof"));
    ef_fuzz_write_and_read(profile, ef_format_find("json"));
    ef_profile_free(profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#endif
