/*
 * Decides which handler a method and path belong to, and what to say when there is none. Any
 * thread.
 */
#include <string.h>

#include "collector/serve/internal.h"
#include "proto/base/option.h"

#define BODY_NONE false
#define BODY_PROFILE true

static const struct ef_route routes[] = {
#define X(method, path, handler, body, params, sentence)                                           \
    {#method, path, handler, body, params, sentence},
#include "collector/serve/routes.def"
#undef X
};

const struct ef_route *
ef_route_find(const char *method, const char *path, const struct ef_route **ret_other)
{
    *ret_other = NULL;
    if (strcmp(method, "HEAD") == 0)
        method = "GET"; /* the same answer, without its body */
    for (size_t i = 0; i < EF_COUNT_OF(routes); i++) {
        if (strcmp(routes[i].path, path) != 0)
            continue;
        if (strcmp(routes[i].method, method) == 0)
            return &routes[i];
        *ret_other = &routes[i];
    }
    return NULL;
}

const char *
ef_route_nearest(const char *path)
{
    const char *paths[EF_COUNT_OF(routes)];

    for (size_t i = 0; i < EF_COUNT_OF(routes); i++)
        paths[i] = routes[i].path;
    return ef_nearest_word(path, paths, EF_COUNT_OF(routes));
}

ef_rc
ef_route_check_param(const struct ef_route *route, const char *name, struct ef_answer *answer,
                     struct ef_err *err)
{
    char text[256];
    const char *names[32], *nearest;
    size_t count = 0;

    strncpy(text, route->params, sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    for (char *save = NULL, *at = strtok_r(text, " ", &save); at != NULL && count < 32;
         at = strtok_r(NULL, " ", &save)) {
        if (strcmp(at, name) == 0)
            return EF_OK;
        names[count++] = at;
    }
    nearest = ef_nearest_word(name, names, count);
    if (nearest != NULL)
        ef_answer_hint(answer, "do you mean '%s'?", nearest);
    else if (count > 0)
        ef_answer_hint(answer, "%s knows: %s", route->path, route->params);
    return ef_err_set(err, EF_EINVAL, "there is no parameter '%.64s' here", name);
}

void
ef_serve_reference(struct ef_buf *out)
{
    ef_buf_append_str(out, "| Route | Parameters | Answer |\n| --- | --- | --- |\n");
    for (size_t i = 0; i < EF_COUNT_OF(routes); i++)
        ef_buf_printf(out, "| `%s %s` | %s | %s |\n", routes[i].method, routes[i].path,
                      routes[i].params[0] != '\0' ? routes[i].params : "(none)",
                      routes[i].sentence);
}
