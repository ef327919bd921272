/*
 * What a message must satisfy beyond being protobuf: columns of equal length, indexes in range,
 * names and UTF-8, numbers that cannot overflow later, counts below the limits. Applied to what
 * arrives, and before sending, so that no publisher spools a batch that the collector refuses for
 * ever. Pure, any thread.
 */
#ifndef PROTO_WIRE_CHECK_H
#define PROTO_WIRE_CHECK_H

#include "proto/wire/wire.h"

/*
 * in_arena: the texts were allocated by ef_wire_arena, whose size field reveals NUL bytes inside;
 * otherwise they are ordinary C strings. EF_ECORRUPT or EF_ELIMIT with the reason.
 */
EF_MUST_USE ef_rc ef_wire_check(enum ef_wire_kind kind, const ProtobufCMessage *message,
                                bool in_arena, struct ef_err *err);

#endif
