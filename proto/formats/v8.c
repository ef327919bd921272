/*
 * Decides which JSON counts as a V8 profile and how its call frames become ours. V8 counts lines
 * and columns from 0 and says -1 for "none"; we count from 1 and say 0. Must not know what the
 * values of nodes mean. Any thread.
 */
#include "proto/formats/v8.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REAL_MAX 9007199254740992.0 /* 2^53: above, JSON's numbers are not exact */

ef_rc
ef_jsonin_parse(const uint8_t *data, size_t len, const char *format, json_t **ret,
                struct ef_err *err)
{
    json_error_t reason;
    json_t *json;

    if (len > EF_FORMAT_JSON_BYTES_MAX)
        return ef_err_set(err, EF_ELIMIT, "%s: %zu bytes are more than the limit of %u", format,
                          len, EF_FORMAT_JSON_BYTES_MAX);
    /* JavaScript names may hold a NUL character. */
    json = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &reason);
    if (json == NULL && reason.text[0] == '\0') /* jansson 2.14 says nothing when memory is out. */
        return ef_err_set(err, EF_ENOMEM, "out of memory while reading a %s", format);
    if (json == NULL)
        return ef_err_set(err, EF_ECORRUPT, "%s: not JSON: line %d, column %d: %s", format,
                          reason.line, reason.column, reason.text);
    if (!json_is_object(json)) {
        json_decref(json);
        return ef_err_set(err, EF_ECORRUPT, "%s: not a JSON object", format);
    }
    *ret = json;
    return EF_OK;
}

const json_t *
ef_v8_unwrap(const json_t *json)
{
    const json_t *inner = json_object_get(json, "result");

    if (json_is_object(inner))
        json = inner;
    inner = json_object_get(json, "profile");
    return json_is_object(inner) ? inner : json;
}

ef_rc
ef_jsonin_value_i64(const json_t *value, const char *what, int64_t min, int64_t max, int64_t *ret,
                    struct ef_err *err)
{
    int64_t number;

    if (json_is_integer(value)) {
        number = json_integer_value(value);
    } else if (json_is_real(value)) {
        double real = json_real_value(value);
        if (!(fabs(real) <= REAL_MAX))
            return ef_err_set(err, EF_ECORRUPT, "'%s' is out of range", what);
        number = llround(real);
    } else {
        return ef_err_set(err, EF_ECORRUPT, "'%s' is not a number", what);
    }
    if (number < min || number > max)
        return ef_err_set(err, EF_ECORRUPT, "'%s' is out of range: %" PRId64, what, number);
    *ret = number;
    return EF_OK;
}

ef_rc
ef_jsonin_i64(const json_t *object, const char *key, int64_t absent, int64_t min, int64_t max,
              int64_t *ret, struct ef_err *err)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL || json_is_null(value)) {
        *ret = absent;
        return EF_OK;
    }
    return ef_jsonin_value_i64(value, key, min, max, ret, err);
}

ef_rc
ef_jsonin_text(const json_t *object, const char *key, const char **ret, size_t *ret_len,
               struct ef_err *err)
{
    const json_t *value = json_object_get(object, key);

    if (value != NULL && !json_is_string(value) && !json_is_null(value))
        return ef_err_set(err, EF_ECORRUPT, "'%s' is not a text", key);
    *ret = json_is_string(value) ? json_string_value(value) : "";
    *ret_len = json_is_string(value) ? json_string_length(value) : 0;
    return EF_OK;
}

/* Appends a node and enters its id. */
static ef_rc
append_node(struct ef_v8_tree *tree, const json_t *json, uint32_t parent,
            const struct ef_profile_limits *limits, struct ef_err *err)
{
    uint32_t depth = tree->count == 0 ? 0 : tree->nodes[parent].depth + 1;
    uint64_t *index;
    int64_t id;
    bool is_new;
    ef_rc rc;

    if (!json_is_object(json))
        return ef_err_set(err, EF_ECORRUPT, "a node is not an object");
    rc = ef_jsonin_i64(json, "id", -1, 0, INT64_MAX, &id, err);
    if (rc != EF_OK)
        return rc;
    if (id < 0)
        return ef_err_set(err, EF_ECORRUPT, "a node has no id");
    if (depth > EF_PROFILE_DEPTH_MAX)
        return ef_err_set(err, EF_ELIMIT, "node %" PRId64 " is deeper than %d frames", id,
                          EF_PROFILE_DEPTH_MAX);
    if (tree->count > limits->nodes_max)
        return ef_err_set(err, EF_ELIMIT, "more than %" PRIu32 " nodes", limits->nodes_max);
    if (tree->count == tree->cap) {
        uint32_t cap = tree->cap == 0 ? 256 : tree->cap * 2;
        struct ef_v8_node *nodes = realloc(tree->nodes, cap * sizeof(*nodes));
        if (nodes == NULL)
            return ef_err_set(err, EF_ENOMEM, "out of memory for nodes");
        tree->nodes = nodes;
        tree->cap = cap;
    }
    index = ef_map_upsert(&tree->ids, (uint64_t)id, &is_new);
    if (index == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory for nodes");
    if (!is_new)
        return ef_err_set(err, EF_ECORRUPT, "node id %" PRId64 " occurs twice", id);
    tree->nodes[tree->count] =
        (struct ef_v8_node){.json = json, .id = id, .parent = parent, .depth = depth};
    *index = ++tree->count;
    return EF_OK;
}

/* The children of a node, NULL when it has none. */
static ef_rc
children_of(const json_t *node, const json_t **ret, struct ef_err *err)
{
    const json_t *children = json_object_get(node, "children");

    if (children != NULL && !json_is_array(children) && !json_is_null(children))
        return ef_err_set(err, EF_ECORRUPT, "'children' is not a list");
    *ret = json_is_array(children) ? children : NULL;
    return EF_OK;
}

/* The array of nodes is its own work list: breadth first, no recursion. */
ef_rc
ef_v8_tree_read_nested(const json_t *head, const struct ef_profile_limits *limits,
                       struct ef_v8_tree *ret, struct ef_err *err)
{
    struct ef_v8_tree tree = {0};
    ef_rc rc;

    ef_map_init(&tree.ids, SIZE_MAX);
    rc = append_node(&tree, head, 0, limits, err);
    for (uint32_t i = 0; i < tree.count && rc == EF_OK; i++) {
        const json_t *children = NULL;
        rc = children_of(tree.nodes[i].json, &children, err);
        for (size_t child = 0; rc == EF_OK && child < json_array_size(children); child++)
            rc = append_node(&tree, json_array_get(children, child), i, limits, err);
    }
    if (rc == EF_OK)
        *ret = tree;
    else
        ef_v8_tree_fini(&tree);
    return rc;
}

/* The flat form before it is ordered: nodes by id, and who is somebody's child. */
struct flat {
    const json_t *list;
    struct ef_map ids; /* id -> index + 1 */
    uint8_t *is_child;
};

static ef_rc
flat_enter_ids(struct flat *flat, struct ef_err *err)
{
    for (size_t i = 0; i < json_array_size(flat->list); i++) {
        const json_t *node = json_array_get(flat->list, i);
        uint64_t *index;
        int64_t id;
        bool is_new;
        ef_rc rc;
        if (!json_is_object(node))
            return ef_err_set(err, EF_ECORRUPT, "node %zu is not an object", i);
        rc = ef_jsonin_i64(node, "id", -1, 0, INT64_MAX, &id, err);
        if (rc != EF_OK)
            return rc;
        if (id < 0)
            return ef_err_set(err, EF_ECORRUPT, "node %zu has no id", i);
        index = ef_map_upsert(&flat->ids, (uint64_t)id, &is_new);
        if (index == NULL)
            return ef_err_set(err, EF_ENOMEM, "out of memory for nodes");
        if (!is_new)
            return ef_err_set(err, EF_ECORRUPT, "node id %" PRId64 " occurs twice", id);
        *index = i + 1;
    }
    return EF_OK;
}

/* Index of a child named in a list; each node may be named once. */
static ef_rc
flat_child(struct flat *flat, const json_t *value, size_t *ret_index, struct ef_err *err)
{
    const uint64_t *index;
    int64_t id;
    ef_rc rc = ef_jsonin_value_i64(value, "child id", 0, INT64_MAX, &id, err);

    if (rc != EF_OK)
        return rc;
    index = ef_map_get(&flat->ids, (uint64_t)id);
    if (index == NULL)
        return ef_err_set(err, EF_ECORRUPT, "child %" PRId64 " is not among the nodes", id);
    *ret_index = (size_t)*index - 1;
    return EF_OK;
}

static ef_rc
flat_mark_children(struct flat *flat, struct ef_err *err)
{
    for (size_t i = 0; i < json_array_size(flat->list); i++) {
        const json_t *children = NULL;
        ef_rc rc = children_of(json_array_get(flat->list, i), &children, err);
        for (size_t child = 0; rc == EF_OK && child < json_array_size(children); child++) {
            size_t index = 0;
            rc = flat_child(flat, json_array_get(children, child), &index, err);
            if (rc == EF_OK && flat->is_child[index]++)
                rc = ef_err_set(err, EF_ECORRUPT, "child %lld has two parents",
                                json_integer_value(json_array_get(children, child)));
        }
        if (rc != EF_OK)
            return rc;
    }
    return EF_OK;
}

static ef_rc
flat_root(const struct flat *flat, const json_t **ret, struct ef_err *err)
{
    const json_t *root = NULL;

    for (size_t i = 0; i < json_array_size(flat->list); i++) {
        if (flat->is_child[i])
            continue;
        if (root != NULL)
            return ef_err_set(
                err, EF_ECORRUPT, "node %lld has no parent",
                json_integer_value(json_object_get(json_array_get(flat->list, i), "id")));
        root = json_array_get(flat->list, i);
    }
    if (root == NULL)
        return ef_err_set(err, EF_ECORRUPT, "no root: the nodes are each other's children");
    *ret = root;
    return EF_OK;
}

/* Each node is named as a child at most once, so this ends, and what it does not reach is a ring.
 */
static ef_rc
flat_order(struct flat *flat, const struct ef_profile_limits *limits, struct ef_v8_tree *tree,
           struct ef_err *err)
{
    const json_t *root = NULL;
    ef_rc rc = flat_root(flat, &root, err);

    if (rc == EF_OK)
        rc = append_node(tree, root, 0, limits, err);
    for (uint32_t i = 0; i < tree->count && rc == EF_OK; i++) {
        const json_t *children = NULL;
        rc = children_of(tree->nodes[i].json, &children, err);
        for (size_t child = 0; rc == EF_OK && child < json_array_size(children); child++) {
            size_t index;
            rc = flat_child(flat, json_array_get(children, child), &index, err);
            if (rc == EF_OK)
                rc = append_node(tree, json_array_get(flat->list, index), i, limits, err);
        }
    }
    if (rc == EF_OK && tree->count != json_array_size(flat->list))
        rc = ef_err_set(err, EF_ECORRUPT, "%zu nodes are in a circle of children",
                        json_array_size(flat->list) - tree->count);
    return rc;
}

ef_rc
ef_v8_tree_read_flat(const json_t *nodes, const struct ef_profile_limits *limits,
                     struct ef_v8_tree *ret, struct ef_err *err)
{
    struct flat flat = {.list = nodes};
    struct ef_v8_tree tree = {0};
    ef_rc rc;

    ef_map_init(&flat.ids, SIZE_MAX);
    ef_map_init(&tree.ids, SIZE_MAX);
    if (json_array_size(nodes) == 0)
        return ef_err_set(err, EF_ECORRUPT, "there are no nodes");
    flat.is_child = calloc(json_array_size(nodes), 1);
    if (flat.is_child == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory for nodes");
    rc = flat_enter_ids(&flat, err);
    if (rc == EF_OK)
        rc = flat_mark_children(&flat, err);
    if (rc == EF_OK)
        rc = flat_order(&flat, limits, &tree, err);
    if (rc == EF_OK)
        *ret = tree;
    else
        ef_v8_tree_fini(&tree);
    ef_map_fini(&flat.ids);
    free(flat.is_child);
    return rc;
}

void
ef_v8_tree_fini(struct ef_v8_tree *tree)
{
    free(tree->nodes);
    ef_map_fini(&tree->ids);
    *tree = (struct ef_v8_tree){0};
}

const struct ef_v8_node *
ef_v8_tree_find(const struct ef_v8_tree *tree, int64_t id)
{
    const uint64_t *index = ef_map_get(&tree->ids, (uint64_t)id);

    return index != NULL ? &tree->nodes[*index - 1] : NULL;
}

struct call_frame {
    const char *name, *url;
    size_t name_len, url_len;
    int64_t line, column; /* 1-based, 0 = unknown */
};

/* Before 2016 the members stood in the node itself and lines were counted from 1. */
static ef_rc
read_call_frame(const json_t *node, struct call_frame *ret, struct ef_err *err)
{
    const json_t *frame = json_object_get(node, "callFrame");
    int64_t base = frame != NULL ? 1 : 0;
    ef_rc rc;

    if (frame == NULL)
        frame = node;
    if (!json_is_object(frame) || json_object_get(frame, "functionName") == NULL)
        return ef_err_set(err, EF_ECORRUPT, "a node has no call frame");
    rc = ef_jsonin_text(frame, "functionName", &ret->name, &ret->name_len, err);
    if (rc == EF_OK)
        rc = ef_jsonin_text(frame, "url", &ret->url, &ret->url_len, err);
    if (rc == EF_OK)
        rc = ef_jsonin_i64(frame, "lineNumber", -1, -1, INT32_MAX - 1, &ret->line, err);
    if (rc == EF_OK)
        rc = ef_jsonin_i64(frame, "columnNumber", -1, -1, INT32_MAX - 1, &ret->column, err);
    ret->line = ret->line < 0 ? 0 : ret->line + base;
    ret->column = ret->column < 0 ? 0 : ret->column + base;
    return rc;
}

static bool
is_pseudo(const struct call_frame *frame, const char *name)
{
    return frame->url_len == 0 && frame->name_len == strlen(name) &&
           memcmp(frame->name, name, frame->name_len) == 0;
}

/* A leaf of the name (idle) under the root. With children it cannot be V8's and stays. */
static bool
is_idle(const struct ef_v8_node *node, const struct call_frame *frame)
{
    return node->depth == 1 && is_pseudo(frame, "(idle)") &&
           json_array_size(json_object_get(node->json, "children")) == 0;
}

ef_rc
ef_v8_tree_build(struct ef_v8_tree *tree, struct ef_profile *profile, bool drop_idle,
                 struct ef_err *err)
{
    for (uint32_t i = 0; i < tree->count; i++) {
        struct ef_v8_node *node = &tree->nodes[i];
        struct call_frame call = {0};
        uint32_t frame;
        ef_rc rc = read_call_frame(node->json, &call, err);
        if (rc == EF_OK) {
            node->root = i == 0 && is_pseudo(&call, "(root)");
            node->idle = is_idle(node, &call);
            if (node->root || (node->idle && drop_idle))
                continue;
            rc = ef_format_add_frame(profile, call.name, call.name_len, call.url, call.url_len,
                                     (uint32_t)call.line, (uint32_t)call.column, &frame, err);
        }
        if (rc == EF_OK)
            rc = ef_profile_add_node(profile, i == 0 ? 0 : tree->nodes[node->parent].model, frame,
                                     &node->model, err);
        if (rc != EF_OK) {
            ef_err_prefix(err, "node %" PRId64, node->id);
            return rc;
        }
    }
    return EF_OK;
}

void
ef_v8_put_call_frame(struct ef_buf *out, const struct ef_profile *profile, uint32_t frame_id)
{
    const struct ef_profile_frame *frame = &profile->frames[frame_id];
    const struct ef_profile_function *function = &profile->functions[frame->function];
    uint32_t line = function->start_line != 0 ? function->start_line : frame->line;
    char buf[80];
    const char *name = "(root)";
    struct ef_json json;

    if (frame_id != 0) {
        name = ef_profile_frame_name(profile, frame_id, buf, sizeof(buf));
        if (strcmp(name, EF_PROFILE_ANONYMOUS) == 0)
            name = ""; /* as V8 writes it */
    }
    ef_buf_append_str(out, "\"callFrame\":");
    ef_json_init(&json, out);
    ef_json_object(&json);
    ef_json_kstr(&json, "functionName", name);
    ef_json_kstr(&json, "scriptId", "0");
    ef_json_kstr(&json, "url", ef_profile_string(profile, function->file));
    ef_json_ki64(&json, "lineNumber", (int64_t)line - 1);
    ef_json_ki64(&json, "columnNumber", (int64_t)frame->column - 1);
    ef_json_object_end(&json);
}
