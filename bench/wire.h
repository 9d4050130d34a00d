/* AMQP 0-9-1 frames for the load generator and its sink: octets in, octets out.
 *
 * Both programs look at frame headers and at the few method arguments they count by;
 * everything they send was encoded beforehand by frames.py.
 */
#ifndef BENCH_WIRE_H
#define BENCH_WIRE_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FRAME_METHOD = 1, FRAME_HEADER = 2, FRAME_BODY = 3, FRAME_HEARTBEAT = 8 };
enum { FRAME_HEAD = 7, FRAME_OVERHEAD = 8, FRAME_END = 0xCE };

#define METHOD(cls, id) (((uint32_t)(cls) << 16) | (uint32_t)(id))
#define CONNECTION_CLOSE METHOD(10, 50)
#define CHANNEL_CLOSE METHOD(20, 40)
#define BASIC_QOS METHOD(60, 10)
#define BASIC_CONSUME_OK METHOD(60, 21)
#define BASIC_PUBLISH METHOD(60, 40)
#define BASIC_RETURN METHOD(60, 50)
#define BASIC_DELIVER METHOD(60, 60)
#define BASIC_ACK METHOD(60, 80)
#define BASIC_REJECT METHOD(60, 90)
#define BASIC_NACK METHOD(60, 120)
#define TX_COMMIT METHOD(90, 20)
#define TX_COMMIT_OK METHOD(90, 21)

static inline uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static inline uint32_t get32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
static inline void put16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}
static inline void put32(uint8_t *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void put64(uint8_t *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* One complete frame inside a buffer. */
typedef struct {
    uint8_t type;
    uint16_t channel;
    uint32_t size;       /* of the payload */
    uint32_t method;     /* METHOD(class, id) when type is FRAME_METHOD, else 0 */
    const uint8_t *at;   /* first octet of the frame */
    const uint8_t *body; /* first octet of the payload */
} frame;

/* Returns the octets the next frame takes, 0 when it is not complete, -1 when it is none. */
static inline long next_frame(const uint8_t *p, size_t left, frame *f) {
    if (left < FRAME_OVERHEAD) return 0;
    f->type = p[0];
    f->channel = get16(p + 1);
    f->size = get32(p + 3);
    if (left < (size_t)f->size + FRAME_OVERHEAD) return f->size > (1u << 24) ? -1 : 0;
    if (p[FRAME_HEAD + f->size] != FRAME_END) return -1;
    f->at = p;
    f->body = p + FRAME_HEAD;
    f->method = f->type == FRAME_METHOD && f->size >= 4 ? get32(f->body) : 0;
    return (long)f->size + FRAME_OVERHEAD;
}

/* Octets that grow: used for output that a socket would not take at once. */
typedef struct {
    uint8_t *data;
    size_t size, sent, capacity;
} octets;

static inline uint8_t *reserve(octets *o, size_t more) {
    if (o->sent && o->sent == o->size) o->sent = o->size = 0;
    if (o->size + more > o->capacity) {
        if (o->sent > o->size / 2) { /* else there is more to move than to gain */
            memmove(o->data, o->data + o->sent, o->size - o->sent);
            o->size -= o->sent;
            o->sent = 0;
        }
        while (o->size + more > o->capacity) o->capacity = o->capacity ? o->capacity * 2 : 65536;
        o->data = realloc(o->data, o->capacity);
        if (!o->data) {
            fputs("out of memory\n", stderr);
            exit(3);
        }
    }
    return o->data + o->size;
}

static inline void append(octets *o, const void *data, size_t size) {
    memcpy(reserve(o, size), data, size);
    o->size += size;
}

#endif
