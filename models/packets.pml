/* Messages over packets that may be lost, doubled and overtaken, where only the client has a timer:
 * src/message/lane/packet_stream.hpp.
 *
 * Modelled: requests of one packet each, and their answers, each in its time; what every packet says
 * of the other direction (what has come, and how much room there is); packets that are lost, doubled
 * and overtaken, some of each; a server without any timer, which answers what comes; a client's timer that
 * runs out when nothing else goes on, and `early` times at any moment; and, if `shortage`, memory of the
 * server that all its clients share, which the others have taken at some moment and keep for good. Left out: bits for what came out of
 * order (the number alone acknowledges), losses that are seen by order, pieces of messages, memory that packets
 * are sent from, the times themselves.
 *
 * Each time that the timer runs out behind the last one, something must have gone on, or have been lost on
 * its way: what finds no memory is not lost there.
 *
 * Settings: items (requests), room (packets that the server holds), losses, doubles, moves, early, shortage.
 */
#include "common.pml"

#define none 15
#define most 4

local byte items, room;
byte losses, doubles, moves, early;

/* number of a packet with data, or none; what has come; limit; it probes */
chan to_server = [4] of { byte, byte, byte, bit };
chan to_client = [4] of { byte, byte, byte };

/* The client. */
byte laid, acknowledged, limit, got;
byte got_beyond; /* bit i: answer i is here */
bit expects, blocked;
/* The server. */
byte expected, consumed, answered, known; /* known: answers that the client is known to have */
byte beyond;      /* bit i: request i is here, out of order or not read yet */
bit owes_state, repeats;
bit shortage, is_short;
byte spare; /* the place that it shares with nobody: number of the request there + 1; 0: none */

byte progress, progress_then, lost, lost_then;
hidden byte it_was_fruitful, is_in_order, has_place, keeps_to_limit;

#define own_limit ((wrong(room_of_expected) -> expected : consumed) + room)
#define needs_none (number == expected && spare == 0)
#define holds_some ((beyond >> consumed) != 0)
#define is_waiting (acknowledged < laid || expects || blocked)
#define is_quiet (empty(to_server) && empty(to_client) && consumed == expected && \
                  answered == expected && !owes_state && !repeats)

/* Where the network is full, it loses. */
inline client_sends(number, probes) {
    if
    :: nfull(to_server) -> to_server!number, got, 0, probes
    :: full(to_server) -> lost++
    fi
}
inline server_sends(number) {
    owes_state = 0;
    if
    :: nfull(to_client) -> to_client!number, expected, own_limit
    :: full(to_client) -> lost++
    fi
}

inline timer(is_early) {
    if
    :: !is_early ->
        it_was_fruitful = progress != progress_then || lost != lost_then;
        assert(it_was_fruitful);
        progress_then = progress;
        lost_then = lost
    :: else
    fi;
    if
    :: acknowledged < laid && !wrong(request_not_repeated) -> client_sends(acknowledged, 1)
    :: else -> client_sends(none, 1)
    fi
}

proctype Client() {
    byte number, ack, told;
    do
    :: atomic { laid < items && laid < limit ->
        blocked = 0;
        expects = !wrong(answers_not_awaited);
        client_sends(laid, 0);
        laid++;
        progress++
       }
    :: atomic { laid < items && laid == limit && !blocked && !wrong(blocked_forgotten) -> blocked = 1 }
    :: atomic { is_waiting && is_quiet -> timer(0) }
    :: atomic { is_waiting && early > 0 -> early--; timer(1) }
    :: atomic { to_client?number, ack, told ->
        if
        :: ack > acknowledged -> acknowledged = ack; progress++
        :: else
        fi;
        if
        :: told > limit -> limit = told; blocked = 0; progress++
        :: else
        fi;
        if
        :: number != none && (got_beyond & (1 << number)) == 0 ->
            got_beyond = got_beyond | (1 << number);
            progress++;
            do
            :: got_beyond & (1 << got) -> got++
            :: else -> break
            od;
            if
            :: got == laid -> expects = 0
            :: else
            fi
        :: else
        fi;
        number = 0; ack = 0; told = 0
       }
    :: got == items && acknowledged == items -> break
    od;
end:
    do
    :: to_client?_, _, _
    od
}

proctype Server() {
    byte number, ack;
    bit probes;
    byte held;
end:
    do
    :: atomic { to_server?number, ack, _, probes ->
        if
        :: ack > known -> known = ack
        :: else
        fi;
        if
        :: number != none && number >= consumed + room && number >= expected && !wrong(room_of_expected) ->
            keeps_to_limit = 0;
            assert(keeps_to_limit)
        :: number != none && (number >= expected || wrong(duplicate_taken)) &&
           ((beyond & (1 << number)) == 0 || wrong(duplicate_taken)) ->
            held = expected - consumed;
            has_place = number < consumed + room;
            assert(has_place);
            if
            :: is_short && (!needs_none || (wrong(gap_filler_dropped) && holds_some)) -> goto passed
            :: is_short && needs_none && !(wrong(gap_filler_dropped) && holds_some) -> spare = number + 1
            :: !is_short
            fi;
            if
            :: wrong(duplicate_taken) && number < expected ->
                is_in_order = 0;
                assert(is_in_order)
            :: else
            fi;
            beyond = beyond | (1 << number);
            progress++;
            do
            :: beyond & (1 << expected) -> expected++
            :: else -> break
            od
        :: else
        fi;
passed:
        if
        :: probes ->
            owes_state = !wrong(probe_unanswered);
            repeats = known < answered && !wrong(probe_repeats_nothing)
        :: else
        fi;
        number = 0; ack = 0; probes = 0; held = 0
       }
    :: atomic { consumed < expected -> consumed++; progress++;
        if
        :: spare == consumed && !wrong(spare_not_freed) -> spare = 0
        :: else
        fi;
        if
        :: room == 1 -> owes_state = 1
        :: else
        fi
       }
    :: atomic { answered < expected && answered <= consumed -> /* while it is read, or later */
        server_sends(answered); answered++; progress++ }
    :: atomic { repeats -> repeats = 0; server_sends(known) }
    :: atomic { owes_state && !repeats -> server_sends(none) }
    od
}

inline forget() { number = 0; ack = 0; told = 0; probes = 0 }

/* Loses, doubles and delays, as long as it may; and other clients take the server's memory. */
proctype Network() {
    byte number, ack, told;
    bit probes;
end:
    do
    :: atomic { shortage && !is_short -> is_short = 1 }
    :: atomic { losses > 0 && nempty(to_server) ->
        to_server?number, ack, told, probes; losses--; lost++; forget()
       }
    :: atomic { losses > 0 && nempty(to_client) ->
        to_client?number, ack, told; losses--; lost++; forget()
       }
    :: atomic { doubles > 0 && nfull(to_server) && nempty(to_server) ->
        to_server?<number, ack, told, probes>; doubles--;
        to_server!number, ack, told, probes; forget()
       }
    :: atomic { doubles > 0 && nfull(to_client) && nempty(to_client) ->
        to_client?<number, ack, told>; doubles--;
        to_client!number, ack, told; forget()
       }
    :: atomic { moves > 0 && len(to_server) > 1 ->
        to_server?number, ack, told, probes; moves--;
        to_server!number, ack, told, probes; forget()
       }
    :: atomic { moves > 0 && len(to_client) > 1 ->
        to_client?number, ack, told; moves--;
        to_client!number, ack, told; forget()
       }
    od
}

init {
    start();
    c_code {
        now.items = setting("MODEL_items", 2);
        now.room = setting("MODEL_room", 2);
        now.losses = setting("MODEL_losses", 2);
        now.doubles = setting("MODEL_doubles", 1);
        now.moves = setting("MODEL_moves", 1);
        now.early = setting("MODEL_early", 1);
        now.shortage = setting("MODEL_shortage", 0);
    }
    limit = room;
    progress_then = 100;
    atomic { run Client(); run Server(); run Network() }
}
