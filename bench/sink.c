/* What the generator is measured against: the least that can answer it.
 *
 * One thread takes frames and hands them on, nothing is stored, checked or synced: publishes
 * to a queue with consumers are delivered, others are counted, confirms leave once per read.
 * The rates reached here are the ceiling that generator and machine allow; a figure for a
 * broker near it would be a figure of the generator.
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

enum { READ_SIZE = 131072, MAX_QUEUES = 128, MAX_KEY = 64, MAX_CONSUMERS = 4, MAX_FD = 4096 };

typedef struct client {
    int fd;
    bool greeted, confirms, wants_write, dirty, ended;
    uint64_t published, confirmed, deliver_tag;
    uint8_t in[READ_SIZE];
    size_t in_size;
    octets out;
    uint8_t publish[256]; /* the method frame seen last, and where it leads */
    size_t publish_size;
    struct queue *targets[MAX_QUEUES];
    int target_count;
    uint8_t *deliver;
    size_t deliver_size;
} client;

typedef struct queue {
    char name[MAX_KEY], exchange[MAX_KEY], key[MAX_KEY], tag[MAX_KEY];
    uint32_t count;
    client *consumer;
    bool used, fanout;
} queue;

static queue queues[MAX_QUEUES];
static client *clients[MAX_FD], *dirty[MAX_FD];
static int poller, dirty_count;

static size_t take_name(const uint8_t *at, char *into) {
    size_t size = at[0] < MAX_KEY ? at[0] : MAX_KEY - 1;
    memcpy(into, at + 1, size);
    into[size] = 0;
    return (size_t)at[0] + 1;
}

static queue *queue_named(const char *name) {
    queue *free_one = NULL;
    for (int i = 0; i < MAX_QUEUES; i++) {
        if (queues[i].used && !strcmp(queues[i].name, name)) return &queues[i];
        if (!queues[i].used && !free_one) free_one = &queues[i];
    }
    if (!free_one) exit(4);
    memset(free_one, 0, sizeof *free_one);
    free_one->used = true;
    strcpy(free_one->name, name);
    return free_one;
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

static void forget(client *c) {
    for (int i = 0; i < MAX_QUEUES; i++)
        if (queues[i].consumer == c) queues[i].consumer = NULL;
    for (int i = 0; i < MAX_FD; i++)
        if (clients[i]) clients[i]->publish_size = 0;
}

/* Routes are cached by the octets of the whole publish frame, as long as nothing is declared. */
static void route(client *c, const frame *f, long size) {
    char exchange[MAX_KEY], key[MAX_KEY];
    size_t used = take_name(f->body + 6, exchange);
    take_name(f->body + 6 + used, key);
    c->target_count = 0;
    for (int i = 0; i < MAX_QUEUES; i++) {
        queue *q = &queues[i];
        if (!q->used) continue;
        bool hit = exchange[0] ? !strcmp(q->exchange, exchange) && (q->fanout || !strcmp(q->key, key))
                               : !strcmp(q->name, key);
        if (hit) c->targets[c->target_count++] = q;
    }
    if ((size_t)size <= sizeof c->publish) {
        memcpy(c->publish, f->at, (size_t)size);
        c->publish_size = (size_t)size;
    }
}

static void hand_out(client *c, queue *q, const uint8_t *content, size_t size) {
    client *to = q->consumer;
    if (!to) {
        q->count++;
        return;
    }
    size_t tag = strlen(q->tag), names = c->publish_size - FRAME_OVERHEAD - 7;
    size_t method = 4 + 1 + tag + 8 + 1 + names;
    uint8_t *p = reserve(&to->out, FRAME_OVERHEAD + method + size);
    to->out.size += FRAME_OVERHEAD + method + size;
    p[0] = FRAME_METHOD;
    put16(p + 1, 1);
    put32(p + 3, (uint32_t)method);
    put32(p + 7, BASIC_DELIVER);
    p[11] = (uint8_t)tag;
    memcpy(p + 12, q->tag, tag);
    p += 12 + tag;
    put64(p, ++to->deliver_tag);
    p[8] = 0;
    memcpy(p + 9, c->publish + 13, names); /* exchange and routing key */
    p[9 + names] = FRAME_END;
    memcpy(p + 10 + names, content, size);
    touch(to);
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
    if (c->publish_size != (size_t)method || memcmp(c->publish, at, (size_t)method)) {
        next_frame(at, left, &f);
        route(c, &f, method);
    }
    c->published++;
    for (int i = 0; i < c->target_count; i++) hand_out(c, c->targets[i], at + method, content);
    return method + (long)content;
}

static void declare(client *c, const frame *f) {
    char name[MAX_KEY];
    take_name(f->body + 6, name);
    queue *q = queue_named(name);
    uint8_t answer[MAX_KEY + 16];
    size_t size = strlen(name);
    answer[0] = (uint8_t)size;
    memcpy(answer + 1, name, size);
    put32(answer + 1 + size, q->count);
    put32(answer + 5 + size, q->consumer ? 1 : 0);
    reply(c, f->channel, METHOD(50, 11), answer, size + 9);
    forget(NULL);
}

static void bind_queue(client *c, const frame *f) {
    char name[MAX_KEY];
    size_t at = 6 + take_name(f->body + 6, name);
    queue *q = queue_named(name);
    at += take_name(f->body + at, q->exchange);
    take_name(f->body + at, q->key);
    q->fanout = strstr(q->exchange, "fanout") != NULL;
    reply(c, f->channel, METHOD(50, 21), "", 0);
}

static void consume(client *c, const frame *f) {
    char name[MAX_KEY], tag[MAX_KEY];
    take_name(f->body + 6 + take_name(f->body + 6, name), tag);
    queue *q = queue_named(name);
    q->consumer = c;
    strcpy(q->tag, tag);
    uint8_t answer[MAX_KEY + 1];
    answer[0] = (uint8_t)strlen(tag);
    memcpy(answer + 1, tag, strlen(tag));
    reply(c, f->channel, METHOD(60, 21), answer, strlen(tag) + 1);
    forget(NULL);
}

static void method(client *c, const frame *f) {
    static const uint8_t start[] = "\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05" "en_US";
    static const uint8_t tune[] = {7, 255, 0, 2, 0, 0, 0, 0};
    char name[MAX_KEY];
    switch (f->method) {
    case BASIC_ACK: return;
    case METHOD(10, 11): return reply(c, 0, METHOD(10, 30), tune, 8);
    case METHOD(10, 31): return;
    case METHOD(10, 40): return reply(c, 0, METHOD(10, 41), "", 1);
    case METHOD(20, 10): return reply(c, f->channel, METHOD(20, 11), "\0\0\0", 4);
    case METHOD(50, 10): return declare(c, f);
    case METHOD(50, 20): return bind_queue(c, f);
    case METHOD(50, 40):
        take_name(f->body + 6, name);
        queue_named(name)->used = false;
        forget(NULL);
        return reply(c, f->channel, METHOD(50, 41), "\0\0\0", 4);
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
    forget(c);
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
