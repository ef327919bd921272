/*
 * What V8's two profile files have in common: JSON with bounded numbers, call frames, and a tree
 * that comes flat (ids of children) or nested. Private to this folder; jansson stays in here. Any
 * thread.
 */
#ifndef PROTO_FORMATS_V8_H
#define PROTO_FORMATS_V8_H

#include "proto/base/map.h"
#include "proto/formats/internal.h"

#include <jansson.h>

/*
 * jansson takes 11 to 14 times the text of real captures and 20 times that of "[0,0,...]"
 * (measured, 2.14), so JSON is held to less than other files: 640 MB at worst. The largest capture
 * seen has 7 MB (allocations at 2 KiB, 2 s); an hour of CPU at 10 ms has about 4 MB of samples
 * (computed).
 */
#define EF_FORMAT_JSON_BYTES_MAX (32u << 20)

/* Parses JSON with an object at its top. Gives *ret (json_decref). */
EF_MUST_USE ef_rc ef_jsonin_parse(const uint8_t *data, size_t len, const char *format, json_t **ret,
                                  struct ef_err *err);
/* The profile itself, also out of an inspector's reply ({"id":3,"result":{"profile":{...}}}). */
const json_t *ef_v8_unwrap(const json_t *json);
/* A whole number from an object: integers, and reals up to 2^53, rounded. `absent` when there is no
 * such member or it is null. EF_ECORRUPT for other types and outside [min, max]. */
EF_MUST_USE ef_rc ef_jsonin_i64(const json_t *object, const char *key, int64_t absent, int64_t min,
                                int64_t max, int64_t *ret, struct ef_err *err);
/* The same for a value that is not in an object. */
EF_MUST_USE ef_rc ef_jsonin_value_i64(const json_t *value, const char *what, int64_t min,
                                      int64_t max, int64_t *ret, struct ef_err *err);
/* Text of an object's member, "" when absent; borrowed. EF_ECORRUPT for other types. */
EF_MUST_USE ef_rc ef_jsonin_text(const json_t *object, const char *key, const char **ret,
                                 size_t *ret_len, struct ef_err *err);

struct ef_v8_node {
    const json_t *json; /* borrowed */
    int64_t id;
    uint32_t parent; /* index in the array, smaller than its own; the root's is 0 */
    uint32_t depth;  /* of the root: 0 */
    uint32_t model;  /* node of the profile */
    bool root;       /* "(root)": node 0 of the profile */
    bool idle;       /* "(idle)" under the root */
};
struct ef_v8_tree {
    struct ef_v8_node *nodes; /* root first, parents before children */
    uint32_t count, cap;
    struct ef_map ids; /* id -> index + 1 */
};
/* Both check ids (unique), parents (one each, all reached from one root) and depth. */
EF_MUST_USE ef_rc ef_v8_tree_read_flat(const json_t *nodes, const struct ef_profile_limits *limits,
                                       struct ef_v8_tree *ret, struct ef_err *err);
EF_MUST_USE ef_rc ef_v8_tree_read_nested(const json_t *head, const struct ef_profile_limits *limits,
                                         struct ef_v8_tree *ret, struct ef_err *err);
void ef_v8_tree_fini(struct ef_v8_tree *tree);
/* NULL when the id is unknown. */
const struct ef_v8_node *ef_v8_tree_find(const struct ef_v8_tree *tree, int64_t id);
/* Makes the nodes in the profile. With drop_idle an "(idle)" leaf is not made (model 0). */
EF_MUST_USE ef_rc ef_v8_tree_build(struct ef_v8_tree *tree, struct ef_profile *profile,
                                   bool drop_idle, struct ef_err *err);

/* Writes the member "callFrame" of a node; frame 0 is "(root)". */
void ef_v8_put_call_frame(struct ef_buf *out, const struct ef_profile *profile, uint32_t frame);

#endif
