/*
 * Decides nothing: gives proto/pprof the form of a format. Any thread.
 */
#include "proto/pprof/pprof.h"

#include "proto/formats/internal.h"

ef_rc
ef_format_pprof_read(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
                     struct ef_profile **ret_profile, struct ef_err *err)
{
    return ef_pprof_read(data, len, EF_FORMAT_INPUT_BYTES_MAX, limits, ret_profile, err);
}

bool
ef_format_pprof_sniff(const uint8_t *data, size_t len)
{
    return ef_pprof_sniff(data, len);
}

ef_rc
ef_format_pprof_write(const struct ef_profile *profile, const struct ef_format_about *about,
                      struct ef_buf *out, struct ef_err *err)
{
    const struct ef_pprof_about inner = {
        .build = about->build,
        .program = about->program,
        .comment = about->name,
    };

    return ef_pprof_write(profile, &inner, EF_FORMAT_OUTPUT_BYTES_MAX, out, err);
}
