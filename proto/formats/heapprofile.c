/*
 * Decides what V8's sampled allocations mean: bytes are `selfSize`, which V8 has scaled up already;
 * objects are the entries of `samples`, which are what was really seen and are not scaled. Without
 * `samples` (Node writes none to files) objects are 0. Any thread.
 */
#include "proto/formats/v8.h"

#include <inttypes.h>
#include <string.h>

/* Not V8's: the number of objects, so that our own files lose nothing. Viewers ignore it. */
#define SELF_OBJECTS "selfObjects"

enum { TYPE_OBJECTS, TYPE_BYTES };

static ef_rc
add_types(struct ef_profile *profile, struct ef_err *err)
{
    ef_rc rc = ef_profile_add_type(profile, "alloc_objects", "count", err);

    if (rc == EF_OK)
        rc = ef_profile_add_type(profile, "alloc_space", "bytes", err);
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, "space", 5, &profile->period_type.type, err);
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, "bytes", 5, &profile->period_type.unit, err);
    return rc;
}

static ef_rc
add_node_values(struct ef_profile *profile, const struct ef_v8_node *node, struct ef_err *err)
{
    int64_t bytes, objects;
    ef_rc rc = ef_jsonin_i64(node->json, "selfSize", 0, 0, INT64_MAX, &bytes, err);

    if (rc == EF_OK)
        rc = ef_jsonin_i64(node->json, SELF_OBJECTS, 0, 0, INT64_MAX, &objects, err);
    if (rc == EF_OK)
        rc = ef_profile_add_value(profile, node->model, TYPE_BYTES, bytes, err);
    if (rc == EF_OK)
        rc = ef_profile_add_value(profile, node->model, TYPE_OBJECTS, objects, err);
    return rc;
}

static ef_rc
add_samples(struct ef_profile *profile, const struct ef_v8_tree *tree, const json_t *samples,
            struct ef_err *err)
{
    ef_rc rc = EF_OK;

    if (samples != NULL && !json_is_array(samples) && !json_is_null(samples))
        return ef_err_set(err, EF_ECORRUPT, "'samples' is not a list");
    for (size_t i = 0; rc == EF_OK && i < json_array_size(samples); i++) {
        const struct ef_v8_node *node;
        int64_t id = 0;
        rc = ef_jsonin_i64(json_array_get(samples, i), "nodeId", -1, 0, INT64_MAX, &id, err);
        node = id >= 0 ? ef_v8_tree_find(tree, id) : NULL;
        /* Node 20 names nodes that are not in the tree, about 1 of 1700 samples (measured). */
        if (rc == EF_OK && node != NULL)
            rc = ef_profile_add_value(profile, node->model, TYPE_OBJECTS, 1, err);
    }
    profile->samples = json_array_size(samples);
    return rc;
}

static ef_rc
read_tree(struct ef_profile *profile, const json_t *json, const struct ef_profile_limits *limits,
          struct ef_err *err)
{
    struct ef_v8_tree tree = {0};
    const json_t *head = json_object_get(json, "head");
    ef_rc rc;

    if (head == NULL)
        return ef_err_set(err, EF_ECORRUPT, "there is no 'head'");
    rc = ef_v8_tree_read_nested(head, limits, &tree, err);
    if (rc == EF_OK)
        rc = ef_v8_tree_build(&tree, profile, false, err);
    for (uint32_t i = 0; i < tree.count && rc == EF_OK; i++)
        rc = add_node_values(profile, &tree.nodes[i], err);
    if (rc == EF_OK)
        rc = add_samples(profile, &tree, json_object_get(json, "samples"), err);
    ef_v8_tree_fini(&tree);
    return rc;
}

ef_rc
ef_format_heapprofile_read(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
                           struct ef_profile **ret_profile, struct ef_err *err)
{
    struct ef_profile *profile = NULL;
    json_t *json = NULL;
    ef_rc rc = ef_jsonin_parse(data, len, "heapprofile", &json, err);

    if (rc != EF_OK)
        return rc;
    rc = ef_profile_open(limits, &profile, err);
    if (rc == EF_OK)
        rc = add_types(profile, err);
    if (rc == EF_OK)
        rc = read_tree(profile, ef_v8_unwrap(json), limits, err);
    if (rc == EF_OK) {
        *ret_profile = profile;
        profile = NULL; /* moved to the caller */
    } else {
        ef_err_prefix(err, "heapprofile");
    }
    ef_profile_free(profile);
    json_decref(json);
    return rc;
}

bool
ef_format_heapprofile_sniff(const uint8_t *data, size_t len)
{
    return ef_format_is_object(data, len) && ef_format_has_key(data, len, "selfSize") &&
           ef_format_has_key(data, len, "head");
}

struct writer {
    const struct ef_profile *profile;
    struct ef_buf *out;
    uint32_t bytes_type;
    uint32_t objects_type; /* EF_PROFILE_TYPES_MAX = none */
};

static int64_t
value_of(const struct writer *writer, uint32_t node, uint32_t type)
{
    if (type >= writer->profile->type_count)
        return 0;
    return writer->profile->values[(size_t)node * writer->profile->type_count + type];
}

/* Everything of a node up to its children. */
static void
open_node(const struct writer *writer, uint32_t node)
{
    int64_t objects = value_of(writer, node, writer->objects_type);

    ef_buf_put_u8(writer->out, '{');
    ef_v8_put_call_frame(writer->out, writer->profile, writer->profile->nodes[node].frame);
    ef_buf_printf(writer->out, ",\"selfSize\":%" PRId64 ",\"id\":%" PRIu32,
                  value_of(writer, node, writer->bytes_type), node + 1);
    if (objects != 0)
        ef_buf_printf(writer->out, ",\"" SELF_OBJECTS "\":%" PRId64, objects);
    ef_buf_append_str(writer->out, ",\"children\":[");
}

/* Goes down to children and back by the parent; ef_json is not for a nesting as deep as stacks. */
static void
write_nodes(const struct writer *writer, const struct ef_format_links *links)
{
    uint32_t node = 0;

    open_node(writer, node);
    while (!writer->out->failed) {
        if (links->first_child[node] != 0) {
            node = links->first_child[node];
            open_node(writer, node);
            continue;
        }
        while (node != 0 && links->next_sibling[node] == 0) {
            ef_buf_append_str(writer->out, "]}");
            node = writer->profile->nodes[node].parent;
        }
        if (node == 0)
            break;
        ef_buf_append_str(writer->out, "]},");
        node = links->next_sibling[node];
        open_node(writer, node);
    }
    ef_buf_append_str(writer->out, "]}");
}

/* The last type in bytes, and the count just before it, as our own types are ordered. */
static ef_rc
choose_types(struct writer *writer, struct ef_err *err)
{
    const struct ef_profile *profile = writer->profile;

    writer->bytes_type = writer->objects_type = EF_PROFILE_TYPES_MAX;
    for (uint32_t i = 0; i < profile->type_count; i++) {
        if (strcmp(ef_profile_string(profile, profile->types[i].unit), "bytes") == 0)
            writer->bytes_type = i;
    }
    if (writer->bytes_type == EF_PROFILE_TYPES_MAX)
        return ef_err_set(err, EF_EUNSUP,
                          "a heapprofile holds bytes, and this profile has no type in bytes");
    if (writer->bytes_type > 0 &&
        strcmp(ef_profile_string(profile, profile->types[writer->bytes_type - 1].unit), "count") ==
            0)
        writer->objects_type = writer->bytes_type - 1;
    if (writer->objects_type != EF_PROFILE_TYPES_MAX) {
        ef_rc rc = ef_format_refuse_negative(profile, writer->objects_type, "heapprofile", err);
        if (rc != EF_OK)
            return rc;
    }
    return ef_format_refuse_negative(profile, writer->bytes_type, "heapprofile", err);
}

ef_rc
ef_format_heapprofile_write(const struct ef_profile *profile, const struct ef_format_about *about,
                            struct ef_buf *out, struct ef_err *err)
{
    struct writer writer = {.profile = profile, .out = out};
    struct ef_format_links links = {0};
    size_t len = out->len;
    ef_rc rc = choose_types(&writer, err);

    (void)about;
    if (rc == EF_OK)
        rc = ef_format_links_init(&links, profile, err);
    if (rc != EF_OK)
        return rc;
    ef_buf_append_str(out, "{\"head\":");
    write_nodes(&writer, &links);
    ef_buf_append_str(out, ",\"samples\":[]}\n");
    rc = ef_buf_check(out, "the heapprofile", err);
    if (rc != EF_OK)
        out->len = len;
    ef_format_links_fini(&links);
    return rc;
}
