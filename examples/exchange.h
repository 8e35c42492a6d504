/*
 * How the two ends of the examples learn of each other: 12 bytes each way over TCP, QP number, rkey and IPv4 address,
 * each in network byte order. The caller speaks first; the service connects its queue pair, then answers.
 */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct endpoint {
  uint32_t qp;
  uint32_t rkey;
  char ip[INET_ADDRSTRLEN];
};

static inline int send_endpoint(int peer, const struct endpoint *ours) {
  uint32_t words[3] = {htonl(ours->qp), htonl(ours->rkey), inet_addr(ours->ip)};
  return write(peer, words, sizeof words) == (ssize_t)sizeof words;
}

static inline int receive_endpoint(int peer, struct endpoint *theirs) {
  uint32_t words[3];
  if (recv(peer, words, sizeof words, MSG_WAITALL) != (ssize_t)sizeof words)
    return 0;
  theirs->qp = ntohl(words[0]);
  theirs->rkey = ntohl(words[1]);
  return inet_ntop(AF_INET, &words[2], theirs->ip, sizeof theirs->ip) != NULL;
}

static inline struct sockaddr_in address_of(const char *ip, uint16_t port) {
  struct sockaddr_in address;
  memset(&address, 0, sizeof address);
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = inet_addr(ip);
  address.sin_port = htons(port);
  return address;
}

/* Waits for a caller; the connection to it, or -1. Port 0 takes any free one; either is printed. */
static inline int wait_for_caller(const char *ip, uint16_t port) {
  struct sockaddr_in address = address_of(ip, port);
  socklen_t length = sizeof address;
  int yes = 1, caller = -1, listener = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0 &&
      getsockname(listener, (struct sockaddr *)&address, &length) == 0) {
    printf("listening on %s port %u\n", ip, ntohs(address.sin_port));
    fflush(stdout);
    caller = accept(listener, NULL, NULL);
  }
  if (caller < 0)
    perror("waiting for a caller");
  close(listener);
  return caller;
}

/* Calls the service; the connection to it, or -1. */
static inline int call_service(const char *ip, uint16_t port) {
  struct sockaddr_in address = address_of(ip, port);
  int service = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(service, (struct sockaddr *)&address, sizeof address) == 0)
    return service;
  perror("calling the service");
  close(service);
  return -1;
}

#endif
