/* What the generator is measured against: the least that can answer it.
 *
 * One thread takes frames and hands them on, nothing is checked or synced: publishes to a
 * queue go to its consumers in turn as far as their prefetch allows, or wait in memory, and
 * confirms leave once per read. An exchange leads to all queues bound to it. The rates
 * reached here are the ceiling that generator and machine allow; a figure for a broker near
 * it would be a figure of the generator.
 *
 * It prints its port on stdout and ends with its stdin. All names are ASCII, channel is 1.
 */
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_SIZE = 131072, MAX_QUEUES = 2048, MAX_EXCHANGES = 8, MAX_KEY = 64, MAX_FD = 4096 };
enum { MAX_CONSUMERS = 64, MAX_SOURCES = 16, WAITING_HEAD = 8 };

typedef struct client {
    int fd;
    bool greeted, confirms, wants_write, dirty, ended, acks;
    uint64_t published, confirmed, deliver_tag, acked, prefetch, credit; /* credit: of the channel */
    uint8_t in[READ_SIZE];
    size_t in_size;
    octets out;
    uint8_t publish[256]; /* the method frame seen last, and where it leads */
    size_t publish_size;
    struct queue **targets, *only;
    int target_count;
    struct queue *source[MAX_SOURCES]; /* it consumes from them */
    int source_count;
} client;

typedef struct {
    client *to;
    char tag[MAX_KEY];
} consumer;

typedef struct queue {
    char name[MAX_KEY];
    bool used;
    uint32_t count; /* of those that wait: sizes of names and content, then both */
    octets waiting;
    consumer consumers[MAX_CONSUMERS];
    int consumer_count, next;
} queue;

typedef struct {
    char name[MAX_KEY];
    queue *bound[MAX_QUEUES];
    int count;
} exchange;

static queue queues[MAX_QUEUES]; /* by the hash of their names, which stay when they are deleted */
static exchange exchanges[MAX_EXCHANGES];
static client *clients[MAX_FD], *dirty[MAX_FD];
static int poller, dirty_count;

static size_t take_name(const uint8_t *at, char *into) {
    size_t size = at[0] < MAX_KEY ? at[0] : MAX_KEY - 1;
    memcpy(into, at + 1, size);
    into[size] = 0;
    return (size_t)at[0] + 1;
}

static queue *queue_named(const char *name) {
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    for (uint32_t i = 0; i < MAX_QUEUES; i++) {
        queue *q = &queues[(hash + i) % MAX_QUEUES];
        if (!q->name[0]) strcpy(q->name, name);
        if (!strcmp(q->name, name)) return q;
    }
    exit(4);
}

static exchange *exchange_named(const char *name) {
    for (int i = 0; i < MAX_EXCHANGES; i++) {
        if (!exchanges[i].name[0]) strcpy(exchanges[i].name, name);
        if (!strcmp(exchanges[i].name, name)) return &exchanges[i];
    }
    exit(4);
}

static void touch(client *c) {
    if (!c->dirty) dirty[dirty_count++] = c;
    c->dirty = true;
}

static void reply(client *c, uint16_t channel, uint32_t method, const void *arguments, size_t size) {
    uint8_t head[11] = {FRAME_METHOD}, end = FRAME_END;
    put16(head + 1, channel);
    put32(head + 3, (uint32_t)size + 4);
    put32(head + 7, method);
    append(&c->out, head, 11);
    append(&c->out, arguments, size);
    append(&c->out, &end, 1);
    touch(c);
}

static void cancel_consumers(client *gone) {
    for (int i = 0; i < gone->source_count; i++) {
        queue *q = gone->source[i];
        int kept = 0;
        for (int k = 0; k < q->consumer_count; k++)
            if (q->consumers[k].to != gone) q->consumers[kept++] = q->consumers[k];
        q->consumer_count = kept;
    }
}

static void forget_routes(void) {
    for (int i = 0; i < MAX_FD; i++)
        if (clients[i]) clients[i]->publish_size = 0;
}

/* Routes are cached by the octets of the whole publish frame, as long as nothing is declared. */
static void route(client *c, const uint8_t *at, size_t size) {
    char name[MAX_KEY], key[MAX_KEY];
    size_t used = take_name(at + 13, name);
    take_name(at + 13 + used, key);
    if (name[0]) {
        exchange *e = exchange_named(name);
        c->targets = e->bound;
        c->target_count = e->count;
    } else {
        c->only = queue_named(key);
        c->targets = &c->only;
        c->target_count = c->only->used;
    }
    c->publish_size = 0;
    if (size <= sizeof c->publish) {
        memcpy(c->publish, at, size);
        c->publish_size = size;
    }
}

static consumer *next_consumer(queue *q) {
    for (int i = 0; i < q->consumer_count; i++) {
        consumer *found = &q->consumers[q->next++ % q->consumer_count];
        client *c = found->to;
        if (!c->acks || !c->credit || c->deliver_tag - c->acked < c->credit) return found;
    }
    return NULL;
}

static void deliver(const consumer *by, const uint8_t *names, size_t names_size, const uint8_t *content, size_t size) {
    client *to = by->to;
    size_t tag = strlen(by->tag), method = 4 + 1 + tag + 8 + 1 + names_size;
    uint8_t *p = reserve(&to->out, FRAME_OVERHEAD + method + size);
    to->out.size += FRAME_OVERHEAD + method + size;
    p[0] = FRAME_METHOD;
    put16(p + 1, 1);
    put32(p + 3, (uint32_t)method);
    put32(p + 7, BASIC_DELIVER);
    p[11] = (uint8_t)tag;
    memcpy(p + 12, by->tag, tag);
    p += 12 + tag;
    put64(p, ++to->deliver_tag);
    p[8] = 0;
    memcpy(p + 9, names, names_size); /* exchange and routing key */
    p[9 + names_size] = FRAME_END;
    memcpy(p + 10 + names_size, content, size);
    touch(to);
}

static void enqueue(queue *q, const uint8_t *names, size_t names_size, const uint8_t *content, size_t size) {
    consumer *by = q->count ? NULL : next_consumer(q);
    if (by) return deliver(by, names, names_size, content, size);
    uint8_t *p = reserve(&q->waiting, WAITING_HEAD + names_size + size);
    put32(p, (uint32_t)names_size);
    put32(p + 4, (uint32_t)size);
    memcpy(p + WAITING_HEAD, names, names_size);
    memcpy(p + WAITING_HEAD + names_size, content, size);
    q->waiting.size += WAITING_HEAD + names_size + size;
    q->count++;
}

static void dispatch(queue *q) {
    consumer *by;
    while (q->count && (by = next_consumer(q))) {
        const uint8_t *p = q->waiting.data + q->waiting.sent;
        size_t names = get32(p), size = get32(p + 4);
        deliver(by, p + WAITING_HEAD, names, p + WAITING_HEAD + names, size);
        q->waiting.sent += WAITING_HEAD + names + size;
        q->count--;
    }
}

/* Returns the octets a publish with its content takes, 0 when incomplete. */
static long publish(client *c, const uint8_t *at, size_t left) {
    frame f;
    long method = next_frame(at, left, &f), header, body;
    header = next_frame(at + method, left - (size_t)method, &f);
    if (header <= 0) return header;
    uint64_t size = get64(f.body + 4);
    size_t content = (size_t)header;
    while (size) {
        body = next_frame(at + method + content, left - (size_t)method - content, &f);
        if (body <= 0) return body;
        content += (size_t)body;
        size -= f.size;
    }
    if (c->publish_size != (size_t)method || memcmp(c->publish, at, (size_t)method))
        route(c, at, (size_t)method);
    c->published++;
    for (int i = 0; i < c->target_count; i++)
        enqueue(c->targets[i], at + 13, (size_t)method - FRAME_OVERHEAD - 7, at + method, content);
    return method + (long)content;
}

static void declare(client *c, const frame *f) {
    char name[MAX_KEY];
    take_name(f->body + 6, name);
    queue *q = queue_named(name);
    q->used = true;
    uint8_t answer[MAX_KEY + 16];
    size_t size = strlen(name);
    answer[0] = (uint8_t)size;
    memcpy(answer + 1, name, size);
    put32(answer + 1 + size, q->count);
    put32(answer + 5 + size, (uint32_t)q->consumer_count);
    reply(c, f->channel, METHOD(50, 11), answer, size + 9);
    forget_routes();
}

static void delete_queue(client *c, const frame *f) {
    char name[MAX_KEY];
    take_name(f->body + 6, name);
    queue *q = queue_named(name);
    q->used = false;
    q->count = 0;
    free(q->waiting.data);
    q->waiting = (octets){0};
    for (int i = 0; i < MAX_EXCHANGES; i++) {
        int kept = 0;
        for (int k = 0; k < exchanges[i].count; k++)
            if (exchanges[i].bound[k] != q) exchanges[i].bound[kept++] = exchanges[i].bound[k];
        exchanges[i].count = kept;
    }
    forget_routes();
    reply(c, f->channel, METHOD(50, 41), "\0\0\0", 4);
}

static void bind_queue(client *c, const frame *f) {
    char name[MAX_KEY], source[MAX_KEY];
    take_name(f->body + 6 + take_name(f->body + 6, name), source);
    exchange *e = exchange_named(source);
    if (e->count == MAX_QUEUES) exit(4);
    e->bound[e->count++] = queue_named(name);
    forget_routes();
    reply(c, f->channel, METHOD(50, 21), "", 0);
}

static void consume(client *c, const frame *f) {
    char name[MAX_KEY], tag[MAX_KEY];
    size_t at = 6 + take_name(f->body + 6, name);
    at += take_name(f->body + at, tag);
    queue *q = queue_named(name);
    if (q->consumer_count == MAX_CONSUMERS || c->source_count == MAX_SOURCES) exit(4);
    q->consumers[q->consumer_count].to = c;
    strcpy(q->consumers[q->consumer_count++].tag, tag);
    c->source[c->source_count++] = q;
    c->acks = !(f->body[at] & 2);
    c->credit += c->prefetch;
    uint8_t answer[MAX_KEY + 1];
    answer[0] = (uint8_t)strlen(tag);
    memcpy(answer + 1, tag, strlen(tag));
    reply(c, f->channel, BASIC_CONSUME_OK, answer, strlen(tag) + 1);
    dispatch(q);
}

static void acknowledged(client *c, uint64_t tag) {
    c->acked = tag;
    for (int i = 0; i < c->source_count; i++) dispatch(c->source[i]);
}

static void method(client *c, const frame *f) {
    static const uint8_t start[] = "\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05" "en_US";
    static const uint8_t tune[] = {7, 255, 0, 2, 0, 0, 0, 0};
    switch (f->method) {
    case BASIC_ACK: return acknowledged(c, get64(f->body + 4)); /* in order, as the generator acks */
    case BASIC_QOS: c->prefetch = get16(f->body + 8); return reply(c, f->channel, METHOD(60, 11), "", 0);
    case METHOD(10, 11): return reply(c, 0, METHOD(10, 30), tune, 8);
    case METHOD(10, 31): return;
    case METHOD(10, 40): return reply(c, 0, METHOD(10, 41), "", 1);
    case METHOD(20, 10): return reply(c, f->channel, METHOD(20, 11), "\0\0\0", 4);
    case METHOD(50, 10): return declare(c, f);
    case METHOD(50, 20): return bind_queue(c, f);
    case METHOD(50, 40): return delete_queue(c, f);
    case METHOD(60, 20): return consume(c, f);
    case METHOD(85, 10): c->confirms = true; return reply(c, f->channel, METHOD(85, 11), "", 0);
    case METHOD(0, 0): return reply(c, 0, METHOD(10, 10), start, sizeof start - 1);
    default: return reply(c, f->channel, f->method + 1, "", 0); /* every other x-ok is bare */
    }
}

static void parse(client *c) {
    size_t at = 0;
    if (!c->greeted && c->in_size >= 8) {
        frame hello = {0};
        c->greeted = true;
        at = 8;
        method(c, &hello);
    }
    while (c->greeted) {
        frame f;
        long taken = next_frame(c->in + at, c->in_size - at, &f);
        if (taken > 0 && f.method == BASIC_PUBLISH) taken = publish(c, c->in + at, c->in_size - at);
        else if (taken > 0 && f.type == FRAME_METHOD) method(c, &f);
        if (taken <= 0) break;
        at += (size_t)taken;
    }
    if (c->confirms && c->published > c->confirmed) {
        uint8_t arguments[9];
        put64(arguments, c->published);
        arguments[8] = 1;
        reply(c, 1, BASIC_ACK, arguments, 9);
        c->confirmed = c->published;
    }
    memmove(c->in, c->in + at, c->in_size - at);
    c->in_size -= at;
}

static void end(client *c) {
    cancel_consumers(c);
    close(c->fd);
    c->ended = true; /* freed by the caller: it may still stand in the list of the dirty */
    clients[c->fd] = NULL;
}

static void flush(client *c) {
    while (!c->ended && c->out.sent < c->out.size) {
        ssize_t n = send(c->fd, c->out.data + c->out.sent, c->out.size - c->out.sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN) end(c);
            break;
        }
        c->out.sent += (size_t)n;
    }
    bool write = !c->ended && c->out.sent < c->out.size;
    if (c->ended || write == c->wants_write) return;
    c->wants_write = write;
    struct epoll_event e = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.fd = c->fd};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &e);
}

static void accept_one(int listener) {
    int fd = accept(listener, NULL, NULL), one = 1;
    if (fd < 0 || fd >= MAX_FD) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    clients[fd] = calloc(1, sizeof(client));
    if (!clients[fd]) exit(3);
    clients[fd]->fd = fd;
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e);
}

static void serve(client *c) {
    ssize_t n = recv(c->fd, c->in + c->in_size, READ_SIZE - c->in_size, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        touch(c);
        return end(c);
    }
    c->in_size += (size_t)n;
    parse(c);
}

int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 128)) return 2;
    getsockname(listener, (struct sockaddr *)&address, &size);
    printf("sink ready on 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    poller = epoll_create1(0);
    int watched[] = {listener, 0};
    for (int i = 0; i < 2; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.fd = watched[i]};
        epoll_ctl(poller, EPOLL_CTL_ADD, watched[i], &e);
    }
    for (;;) {
        struct epoll_event events[64];
        int n = epoll_wait(poller, events, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == 0) return 0;
            if (fd == listener) accept_one(listener);
            else if (clients[fd] && events[i].events & EPOLLOUT) touch(clients[fd]);
            if (fd != listener && clients[fd] && events[i].events & ~(uint32_t)EPOLLOUT) serve(clients[fd]);
        }
        for (int i = 0; i < dirty_count; i++) {
            dirty[i]->dirty = false;
            flush(dirty[i]);
            if (dirty[i]->ended) {
                free(dirty[i]->out.data);
                free(dirty[i]);
            }
        }
        dirty_count = 0;
    }
}
