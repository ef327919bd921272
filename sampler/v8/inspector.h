/*
 * Commands to a V8 inspector, one at a time, over one connection; and the list of its targets.
 *
 * Invariants: a reply is matched by its id only; a reply without "result" is a success when it has
 * no "error" (workerd). Documents nobody asked for (late replies, unknown ids) are passed over.
 * After any error but EF_EINVAL and EF_EUNSUP the connection is of no use any more: free it.
 * One thread at a time.
 */
#ifndef SAMPLER_V8_INSPECTOR_H
#define SAMPLER_V8_INSPECTOR_H

#include "proto/base/err.h"
#include "proto/base/time.h"
#include "sampler/sampler.h"
#include "sampler/v8/json_text.h"

/* Gets each event as it is met while waiting for a reply. The texts are borrowed for the call. */
typedef void (*ef_inspector_event_fn)(void *ctx, const char *method, struct ef_json_text params,
                                      ef_mono_ns arrived);

struct ef_inspector;

/* "host:port", "1.2.3.4:port", "[::1]:port". EF_EINVAL with text. *ret_port may be NULL. */
EF_MUST_USE ef_rc ef_inspector_check_address(const char *address, uint16_t *ret_port,
                                             struct ef_err *err);
/* Whether the address names this host without asking anybody. */
bool ef_inspector_is_local(const char *address);

/*
 * GET /json. At most entries_max; *ret_count says how many. EF_EUNREACH, EF_ETIMEOUT, EF_ECORRUPT,
 * EF_ELIMIT; EF_EUNSUP when another runtime answers than `runtime` ("workerd", "node").
 */
EF_MUST_USE ef_rc ef_inspector_list(const char *address, const char *runtime, uint64_t deadline_ms,
                                    struct ef_listed *entries, size_t entries_max,
                                    size_t *ret_count, struct ef_err *err);

/* Connects to one target of the list; its id must be fit for a URL (EF_EINVAL). */
EF_MUST_USE ef_rc ef_inspector_open(const char *address, const char *id, uint64_t deadline_ms,
                                    ef_inspector_event_fn event, void *event_ctx,
                                    struct ef_inspector **ret_inspector, struct ef_err *err);
/* Closes, and waits up to 0.1 s until the peer has closed too. NULL is fine. */
void ef_inspector_free(struct ef_inspector *inspector);
/* See ef_ws_leave_after. */
void ef_inspector_leave_after(struct ef_inspector *inspector, const char *needle,
                              uint64_t grace_ms);

struct ef_inspector_reply {
    struct ef_json_text
        result;      /* absent for workerd's bare replies; borrowed until the next call */
    ef_span_ns took; /* from sending to the reply's arrival */
};

/*
 * Sends a command and waits for its reply. `params`: a JSON object or NULL. EF_EINVAL: refused, the
 * text holds the peer's; EF_EUNSUP: no such method; EF_ETIMEOUT, EF_ECLOSED, EF_ELIMIT,
 * EF_ECORRUPT.
 */
EF_MUST_USE ef_rc ef_inspector_call(struct ef_inspector *inspector, const char *method,
                                    const char *params, struct ef_inspector_reply *ret,
                                    struct ef_err *err);
/* Hands waiting events to the event function, without blocking. EF_ECLOSED when the peer is gone.
 */
EF_MUST_USE ef_rc ef_inspector_poll(struct ef_inspector *inspector, struct ef_err *err);

#endif
