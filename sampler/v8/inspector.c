/*
 * Decides which document is whose reply. Must not know the order of commands: that is law and
 * stands in workerd.c and node.c. Runs on the session's thread.
 */
#include "sampler/v8/inspector.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/buf.h"
#include "sampler/v8/holder.h"
#include "sampler/v8/ws.h"

#define COMMAND_BYTES_MAX 4096
/* Loaded scripts are announced one event each; 100,000 of them are no program but an attack. */
#define DOCUMENTS_PER_CALL_MAX 100000
#define CLOSE_WAIT_MS_MAX 100     /* measured: 1 to 2 ms; a peer that hangs is not waited for */
#define METHOD_NOT_FOUND (-32601) /* JSON-RPC 2.0 */

struct ef_inspector {
    struct ef_ws *ws;
    uint16_t port;
    uint64_t deadline_ms;
    int64_t id; /* of the last command */
    ef_inspector_event_fn event;
    void *event_ctx;
};

static ef_mono_ns
deadline_in(uint64_t ms)
{
    return (ef_mono_ns){ef_mono_now().ns + (int64_t)ms * EF_NS_PER_MS};
}

static bool
id_is_url_safe(const char *id)
{
    static const char safe[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                               "-._~:@!$&'()*+,;=";

    return id[0] != '\0' && id[strspn(id, safe)] == '\0';
}

/* nng takes the first address a name has; servers listen on one of the two families. */
static ef_rc
open_ws(const char *address, const char *id, uint64_t deadline_ms, struct ef_ws **ret_ws,
        struct ef_err *err)
{
    char url[640];
    ef_rc rc;

    if (strncmp(address, "localhost:", 10) == 0) {
        snprintf(url, sizeof(url), "ws://127.0.0.1:%s/%s", address + 10, id);
        rc = ef_ws_open(url, deadline_ms, ret_ws, err);
        if (rc != EF_EUNREACH)
            return rc;
        snprintf(url, sizeof(url), "ws://[::1]:%s/%s", address + 10, id);
        return ef_ws_open(url, deadline_ms, ret_ws, err);
    }
    snprintf(url, sizeof(url), "ws://%s/%s", address, id);
    return ef_ws_open(url, deadline_ms, ret_ws, err);
}

ef_rc
ef_inspector_open(const char *address, const char *id, uint64_t deadline_ms,
                  ef_inspector_event_fn event, void *event_ctx, struct ef_inspector **ret_inspector,
                  struct ef_err *err)
{
    struct ef_inspector *inspector;
    uint16_t port;
    ef_rc rc;

    if (!id_is_url_safe(id))
        return ef_err_set(err, EF_EINVAL,
                          "the name has characters that cannot stand in an inspector's URL; use "
                          "letters, digits and : _ . -");
    rc = ef_inspector_check_address(address, &port, err);
    if (rc != EF_OK)
        return rc;
    inspector = calloc(1, sizeof(*inspector));
    if (inspector == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    inspector->port = port;
    inspector->deadline_ms = deadline_ms;
    inspector->event = event;
    inspector->event_ctx = event_ctx;
    rc = open_ws(address, id, deadline_ms, &inspector->ws, err);
    if (rc != EF_OK) {
        free(inspector);
        return rc;
    }
    *ret_inspector = inspector;
    return EF_OK;
}

void
ef_inspector_free(struct ef_inspector *inspector)
{
    uint16_t local_port;

    if (inspector == NULL)
        return;
    local_port = ef_ws_local_port(inspector->ws);
    ef_ws_free(inspector->ws);
    if (local_port != 0)
        ef_holder_await_closed(local_port, inspector->port, CLOSE_WAIT_MS_MAX);
    free(inspector);
}

void
ef_inspector_leave_after(struct ef_inspector *inspector, const char *needle, uint64_t grace_ms)
{
    ef_ws_leave_after(inspector->ws, needle, grace_ms);
}

/* Hands an event on; anything else without our id is nobody's. */
static void
give_event(struct ef_inspector *inspector, struct ef_json_text doc, ef_mono_ns arrived)
{
    char method[128];

    if (ef_json_member(doc, "id").at == NULL &&
        ef_json_text_str(ef_json_member(doc, "method"), method, sizeof(method)) &&
        inspector->event != NULL)
        inspector->event(inspector->event_ctx, method, ef_json_member(doc, "params"), arrived);
}

static bool
is_reply_to(struct ef_json_text doc, int64_t id)
{
    int64_t got;

    return ef_json_text_int(ef_json_member(doc, "id"), &got) && got == id;
}

/* Code and text of an "error" member. */
static ef_rc
refused(const char *method, struct ef_json_text error, struct ef_err *err)
{
    char text[256];
    int64_t code = 0;

    if (!ef_json_text_str(ef_json_member(error, "message"), text, sizeof(text)))
        snprintf(text, sizeof(text), "refused without a reason");
    if (!ef_json_text_int(ef_json_member(error, "code"), &code))
        code = 0;
    for (char *at = text; *at != '\0'; at++)
        if ((unsigned char)*at < 0x20)
            *at = ' '; /* the peer's text goes into our logs */
    return ef_err_set(err, code == METHOD_NOT_FOUND ? EF_EUNSUP : EF_EINVAL,
                      "%s was refused: %s (%" PRId64 ")", method, text, code);
}

static ef_rc
send_command(struct ef_inspector *inspector, const char *method, const char *params,
             ef_mono_ns deadline, struct ef_err *err)
{
    struct ef_buf text;
    ef_rc rc;

    ef_buf_init(&text, COMMAND_BYTES_MAX);
    inspector->id++;
    ef_buf_printf(&text, "{\"id\":%" PRId64 ",\"method\":\"%s\"", inspector->id, method);
    if (params != NULL)
        ef_buf_printf(&text, ",\"params\":%s", params);
    ef_buf_append_str(&text, "}");
    rc = ef_buf_check(&text, "a command", err);
    if (rc == EF_OK)
        rc = ef_ws_send(inspector->ws, (const char *)text.data, text.len, deadline, err);
    ef_buf_fini(&text);
    return rc;
}

/* Passes documents on until the reply comes. */
static ef_rc
await_reply(struct ef_inspector *inspector, ef_mono_ns deadline, struct ef_json_text *ret_doc,
            ef_mono_ns *ret_arrived, struct ef_err *err)
{
    for (int count = 0; count < DOCUMENTS_PER_CALL_MAX; count++) {
        ef_rc rc = ef_ws_next(inspector->ws, deadline, ret_doc, ret_arrived, err);
        if (rc != EF_OK || is_reply_to(*ret_doc, inspector->id))
            return rc;
        give_event(inspector, *ret_doc, *ret_arrived);
    }
    return ef_err_set(err, EF_ELIMIT, "%d messages came, but no reply", DOCUMENTS_PER_CALL_MAX);
}

ef_rc
ef_inspector_call(struct ef_inspector *inspector, const char *method, const char *params,
                  struct ef_inspector_reply *ret, struct ef_err *err)
{
    ef_mono_ns begun = ef_mono_now(), arrived = begun;
    ef_mono_ns deadline = deadline_in(inspector->deadline_ms);
    struct ef_json_text doc = {NULL, 0}, error;
    ef_rc rc = send_command(inspector, method, params, deadline, err);

    if (rc == EF_OK)
        rc = await_reply(inspector, deadline, &doc, &arrived, err);
    if (rc == EF_ETIMEOUT)
        return ef_err_set(err, rc, "%s was not answered within %" PRIu64 " ms", method,
                          inspector->deadline_ms);
    if (rc != EF_OK) {
        ef_err_prefix(err, "%s", method);
        return rc;
    }
    error = ef_json_member(doc, "error");
    if (error.at != NULL)
        return refused(method, error, err);
    ret->result = ef_json_member(doc, "result");
    ret->took = ef_mono_since(begun, arrived);
    return EF_OK;
}

ef_rc
ef_inspector_poll(struct ef_inspector *inspector, struct ef_err *err)
{
    for (int count = 0; count < DOCUMENTS_PER_CALL_MAX; count++) {
        struct ef_json_text doc;
        struct ef_err why = {0};
        ef_mono_ns arrived;
        ef_rc rc = ef_ws_next(inspector->ws, (ef_mono_ns){0}, &doc, &arrived, &why);
        if (rc == EF_ETIMEOUT)
            return EF_OK; /* nothing waits */
        if (rc != EF_OK)
            return ef_err_set(err, rc, "%s", why.msg);
        give_event(inspector, doc, arrived);
    }
    return EF_OK;
}
