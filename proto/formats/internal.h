/*
 * What the formats of this folder share. Private to it. Any thread; nothing is kept between calls.
 */
#ifndef PROTO_FORMATS_INTERNAL_H
#define PROTO_FORMATS_INTERNAL_H

#include "proto/base/json.h"
#include "proto/formats/formats.h"

typedef ef_rc ef_format_read_fn(const uint8_t *data, size_t len,
                                const struct ef_profile_limits *limits,
                                struct ef_profile **ret_profile, struct ef_err *err);
typedef bool ef_format_sniff_fn(const uint8_t *data, size_t len);
typedef ef_rc ef_format_write_fn(const struct ef_profile *profile,
                                 const struct ef_format_about *about, struct ef_buf *out,
                                 struct ef_err *err);

#define X(name, ...)                                                                               \
    ef_format_read_fn ef_format_##name##_read;                                                     \
    ef_format_sniff_fn ef_format_##name##_sniff;                                                   \
    ef_format_write_fn ef_format_##name##_write;
#include "proto/formats/formats.def"
#undef X

/* Whether the text is a JSON object; and whether `"key":` occurs anywhere in it. */
bool ef_format_is_object(const uint8_t *data, size_t len);
bool ef_format_has_key(const uint8_t *data, size_t len, const char *key);

/* A function's name: "(anonymous)" becomes the empty one. */
EF_MUST_USE ef_rc ef_format_add_name(struct ef_profile *profile, const char *text, size_t len,
                                     uint32_t *ret_id, struct ef_err *err);
/* A frame of a function, with its first line and column (0 = unknown); file without "file://". */
EF_MUST_USE ef_rc ef_format_add_frame(struct ef_profile *profile, const char *name, size_t name_len,
                                      const char *file, size_t file_len, uint32_t line,
                                      uint32_t column, uint32_t *ret_frame, struct ef_err *err);

/* EF_EUNSUP when a node has a negative value of the type: such a file would be drawn wrongly. */
EF_MUST_USE ef_rc ef_format_refuse_negative(const struct ef_profile *profile, uint32_t type,
                                            const char *format, struct ef_err *err);
/* Nanoseconds of one unit: 1 for "nanoseconds", ...; 0 when it is not a unit of time. */
int64_t ef_format_unit_ns(const char *unit);
/* The first type with this unit, or EF_PROFILE_TYPES_MAX. */
uint32_t ef_format_type_with_unit(const struct ef_profile *profile, const char *unit);

/* Children of each node, in order. */
struct ef_format_links {
    uint32_t *first_child;  /* 0 = none */
    uint32_t *next_sibling; /* 0 = none */
};
EF_MUST_USE ef_rc ef_format_links_init(struct ef_format_links *links,
                                       const struct ef_profile *profile, struct ef_err *err);
void ef_format_links_fini(struct ef_format_links *links);

#endif
