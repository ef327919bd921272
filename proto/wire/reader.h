/*
 * A look inside the reader, for tests that make its memory fail.
 */
#ifndef PROTO_WIRE_READER_H
#define PROTO_WIRE_READER_H

#include "proto/wire/wire.h"

struct ef_wire_arena;
struct ef_wire_arena *ef_wire_reader_arena(struct ef_wire_reader *reader);

#endif
