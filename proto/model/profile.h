/*
 * A profile in memory: a stack tree with values, independent of where it came from and how it is
 * written.
 *
 * Invariants: string 0 is ""; function 0, frame 0 and mapping 0 mean "none"; node 0 is the root and
 * has no frame; a node's parent has a smaller number than the node, so one pass from the end sums
 * children into parents. Equal strings, functions, frames and nodes are stored once. Values are per
 * node (self), one int64 per sample type; they may be negative (differences). Every count is
 * bounded by the limits given at birth: what exceeds them gives EF_ELIMIT and changes nothing.
 * Pure: no input or output, no clock. Not thread-safe; reading by several threads is fine.
 */
#ifndef PROTO_MODEL_PROFILE_H
#define PROTO_MODEL_PROFILE_H

#include "proto/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EF_PROFILE_TYPES_MAX 16   /* sample types; pprof files in the field have up to 5 */
#define EF_PROFILE_DEPTH_MAX 2048 /* frames of a stack; deeper ones are refused by readers */

/* What people see for a function without a name, which is "" in the model. Readers turn it back. */
#define EF_PROFILE_ANONYMOUS "(anonymous)"

struct ef_profile_limits {
    uint32_t nodes_max;
    uint32_t functions_max; /* also frames, mappings */
    size_t string_bytes_max;
};
extern const struct ef_profile_limits
    ef_profile_limits_default; /* 4 M nodes, 1 M functions, 256 MiB of strings */

struct ef_profile_mapping {
    uint64_t start, limit, offset;
    uint32_t file, build_id; /* strings */
};
struct ef_profile_function {
    uint32_t name, system_name, file; /* strings; system_name 0 = as name */
    uint32_t start_line;              /* 1-based; 0 = unknown */
};
struct ef_profile_frame {
    uint32_t function; /* 0 = not symbolised: address in mapping */
    uint32_t line;     /* 1-based; 0 = unknown */
    uint32_t column;   /* 1-based; 0 = unknown */
    uint32_t mapping;  /* 0 = none */
    uint64_t address;  /* 0 when symbolised without address */
};
struct ef_profile_node {
    uint32_t parent;
    uint32_t frame;
};
struct ef_profile_type {
    uint32_t type, unit; /* strings: "cpu" "nanoseconds" */
};

struct ef_profile {
    /* Read these freely; change them only by the functions below. */
    struct ef_profile_node *nodes;
    int64_t *values; /* node_count × type_count, self values */
    uint32_t node_count;
    struct ef_profile_function *functions;
    uint32_t function_count;
    struct ef_profile_frame *frames;
    uint32_t frame_count;
    struct ef_profile_mapping *mappings;
    uint32_t mapping_count;
    struct ef_profile_type types[EF_PROFILE_TYPES_MAX];
    uint32_t type_count;
    /* About the whole: 0 = unknown. */
    int64_t time_ns;     /* wall clock of the start */
    int64_t duration_ns; /* length on the wall clock */
    int64_t period;      /* in the unit of period_type */
    struct ef_profile_type period_type;
    uint64_t samples;        /* samples the source held (rows of a pprof, ticks of a cpuprofile) */
    uint64_t labels_dropped; /* labels of samples, which the tree does not keep: said, not hidden */
    struct ef_profile_inner *inner; /* hash tables and string memory */
};

EF_MUST_USE ef_rc ef_profile_open(const struct ef_profile_limits *limits,
                                  struct ef_profile **ret_profile, struct ef_err *err);
void ef_profile_free(struct ef_profile *profile);
size_t ef_profile_bytes(const struct ef_profile *profile); /* memory it holds */

/* Must be called for all types before the first node with values. EF_EINVAL for a type twice. */
EF_MUST_USE ef_rc ef_profile_add_type(struct ef_profile *profile, const char *type,
                                      const char *unit, struct ef_err *err);
/* Copies the bytes; invalid UTF-8 bytes become '?'. */
EF_MUST_USE ef_rc ef_profile_add_string(struct ef_profile *profile, const char *text, size_t len,
                                        uint32_t *ret_id, struct ef_err *err);
const char *ef_profile_string(const struct ef_profile *profile,
                              uint32_t id); /* NUL-terminated; "" for unknown ids */
EF_MUST_USE ef_rc ef_profile_add_mapping(struct ef_profile *profile,
                                         const struct ef_profile_mapping *mapping, uint32_t *ret_id,
                                         struct ef_err *err);
EF_MUST_USE ef_rc ef_profile_add_function(struct ef_profile *profile,
                                          const struct ef_profile_function *function,
                                          uint32_t *ret_id, struct ef_err *err);
EF_MUST_USE ef_rc ef_profile_add_frame(struct ef_profile *profile,
                                       const struct ef_profile_frame *frame, uint32_t *ret_id,
                                       struct ef_err *err);
/* Finds or makes the child of `parent` with this frame, which is not 0. */
EF_MUST_USE ef_rc ef_profile_add_node(struct ef_profile *profile, uint32_t parent, uint32_t frame,
                                      uint32_t *ret_node, struct ef_err *err);
/* Adds to a node's self value. EF_ELIMIT when the sum would leave int64. */
EF_MUST_USE ef_rc ef_profile_add_value(struct ef_profile *profile, uint32_t node, uint32_t type,
                                       int64_t value, struct ef_err *err);
/* Adds factor × other (same types in name and unit, otherwise EF_EINVAL; a missing period_type
 * matches any). A profile without types and stacks takes those of `other`. time_ns becomes the
 * earlier one, durations add up, the longer period stays; a negative factor leaves the times alone.
 * On failure `profile` is to be thrown away. factor -1 makes a difference. */
EF_MUST_USE ef_rc ef_profile_merge(struct ef_profile *profile, const struct ef_profile *other,
                                   int64_t factor, struct ef_err *err);

#define EF_PROFILE_FRAME_NAME_MAX 512 /* bytes for "0x1234 [file]"; all who hash it cut alike */
/* Name to show for a frame: the function's name, "(anonymous)" for an empty one, or "0x1234 [file]"
 * for an address. */
const char *ef_profile_frame_name(const struct ef_profile *profile, uint32_t frame, char *buf,
                                  size_t len);
/* Sum of a type over all nodes, saturating. */
int64_t ef_profile_total(const struct ef_profile *profile, uint32_t type);

/*
 * Per-function sums: self and total of one type; a function that occurs several times on a path
 * counts once in total. Unsymbolised frames count as a function of their own by address and
 * mapping. Gives rows (free()), in order of first appearance.
 */
struct ef_profile_row {
    uint32_t frame; /* a frame that shows name, file, start line */
    int64_t self[EF_PROFILE_TYPES_MAX];
    int64_t total[EF_PROFILE_TYPES_MAX];
};
EF_MUST_USE ef_rc ef_profile_rows(const struct ef_profile *profile,
                                  struct ef_profile_row **ret_rows, size_t *ret_count,
                                  struct ef_err *err);

/*
 * Content hashes (proto/model/hash.h) of all nodes: hashes[node], hashes[0] = 0. A frame without
 * function hashes as a function named by ef_profile_frame_name, with the mapping's file. Gives the
 * array (free()).
 */
EF_MUST_USE ef_rc ef_profile_hashes(const struct ef_profile *profile, uint64_t **ret_hashes,
                                    struct ef_err *err);

#endif
