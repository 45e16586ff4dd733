-- The shared log on a Postgres server: tables, the append, leases, roles.
--
-- One database may hold many stores. A seq is given out under the store's advisory lock, so seqs are gapless and in the
-- order of commits, and each row is chained to the one before it with the bytes of store/chain.py, format 2. A body is the
-- MessagePack array of the columns between seq and chain; names are bytes too, since text refuses U+0000.
-- Members reach the tables with SELECT under row security, and change them only through the functions of this file, which
-- run as the owner of the schema and ask for the login (session_user), never for the current role.
-- Errors carry states of our own: SC001 not a member, SC002 an older batch, SC003 full, SC004 another history.

CREATE TABLE store (
    store_id  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid       uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    name      text NOT NULL UNIQUE,
    format    integer NOT NULL DEFAULT 2,
    payloads  text NOT NULL,        -- where the payloads are, for hosts that do not say
    max_bytes bigint,               -- of events; NULL for as much as there is
    secret    bytea NOT NULL DEFAULT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
    created   timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE head (
    store_id integer PRIMARY KEY REFERENCES store,
    last_seq bigint NOT NULL DEFAULT 0,
    chain    bytea NOT NULL DEFAULT decode(repeat('00', 32), 'hex'),
    bytes    bigint NOT NULL DEFAULT 0,
    notified timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0);

CREATE TABLE event (
    store_id   integer NOT NULL,
    seq        bigint NOT NULL,
    session_id bytea NOT NULL,
    agent_id   bytea NOT NULL,
    task_id    bytea NOT NULL,
    payloads   text[],              -- digests of the bodies that the event needs
    nonce      bytea,
    body       bytea NOT NULL,
    leaf       bytea,               -- of an erased row, which has no nonce
    chain      bytea NOT NULL,
    PRIMARY KEY (store_id, seq)
) PARTITION BY RANGE (seq);

CREATE TABLE source (               -- which source keys are recorded: hashes, keyed with the secret of the store
    store_id integer NOT NULL,
    key      bytea NOT NULL,
    seq      bigint NOT NULL,
    PRIMARY KEY (store_id, key)
);

CREATE TABLE writer (               -- the newest batch of each writing process, and the answer that it got
    store_id integer NOT NULL,
    writer   uuid NOT NULL,
    batch    bigint NOT NULL,
    seqs     bigint[] NOT NULL,
    states   smallint[] NOT NULL,
    previous bytea,
    seen     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (store_id, writer)
) WITH (fillfactor = 50);

CREATE TABLE session (
    store_id    integer NOT NULL,
    session_id  bytea NOT NULL,
    epoch       bigint NOT NULL,
    owner       text,               -- JSON of the holder; NULL when nobody has the session open
    lease_until timestamptz,
    PRIMARY KEY (store_id, session_id)
);

CREATE TABLE tombstone (            -- payloads that were deleted, or are being deleted
    store_id integer NOT NULL,
    digest   text NOT NULL,
    gen      bigint NOT NULL,
    deleting boolean NOT NULL,
    PRIMARY KEY (store_id, digest)
);

CREATE TABLE member (
    store_id   integer NOT NULL REFERENCES store,
    role       name NOT NULL,
    can_append boolean NOT NULL DEFAULT true,
    can_erase  boolean NOT NULL DEFAULT false,
    PRIMARY KEY (store_id, role)
);

CREATE TABLE replica (              -- the copies on hosts: how far each has come, and which erasure it has carried out
    store_id integer NOT NULL,
    replica  uuid NOT NULL,
    host     text NOT NULL,
    applied  bigint NOT NULL,
    purged   bigint NOT NULL,
    seen     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (store_id, replica)
);

-- membership -----------------------------------------------------------------------------------------------------------

CREATE FUNCTION readable() RETURNS SETOF integer LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, scroll, pg_temp AS $$
    SELECT m.store_id FROM scroll.member m JOIN pg_roles r ON r.rolname = m.role
    WHERE pg_has_role(session_user, r.oid, 'MEMBER')
$$;

CREATE FUNCTION require(p_store integer, p_right text) RETURNS void LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM 1 FROM scroll.member m JOIN pg_roles r ON r.rolname = m.role
    WHERE m.store_id = p_store AND pg_has_role(session_user, r.oid, 'MEMBER')
      AND CASE p_right WHEN 'append' THEN m.can_append WHEN 'erase' THEN m.can_erase ELSE true END;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'role % may not % this store', session_user, p_right USING ERRCODE = 'SC001';
    END IF;
END $$;

ALTER TABLE store ENABLE ROW LEVEL SECURITY;
ALTER TABLE head ENABLE ROW LEVEL SECURITY;
ALTER TABLE event ENABLE ROW LEVEL SECURITY;
ALTER TABLE tombstone ENABLE ROW LEVEL SECURITY;
ALTER TABLE replica ENABLE ROW LEVEL SECURITY;
CREATE POLICY members ON store FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON head FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON event FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON tombstone FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON replica FOR SELECT USING (store_id IN (SELECT scroll.readable()));

-- partitions -----------------------------------------------------------------------------------------------------------

CREATE FUNCTION partition_events() RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 10000000::bigint';

CREATE FUNCTION ensure_partition(p_number bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    part text := 'event_' || p_number;
    size bigint := scroll.partition_events();
BEGIN
    PERFORM pg_advisory_xact_lock(1396920908, 0);
    IF to_regclass('scroll.' || part) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE scroll.%I (LIKE scroll.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
    EXECUTE format('ALTER TABLE scroll.event ATTACH PARTITION scroll.%I FOR VALUES FROM (%s) TO (%s)',
                   part, p_number * size, (p_number + 1) * size);
END $$;

SELECT ensure_partition(0);

-- appending ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION lock_store(p_store integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this needs the isolation level read committed';
    END IF;
    PERFORM pg_advisory_xact_lock(1396920908, p_store);
END $$;

-- Appends what is new of a batch. States: 0 recorded, 1 known by its source key, 2 fenced (seqs has the epoch that counts),
-- 3 nothing was written since payloads of the batch were deleted (seqs has the generation for each row that needs one).
CREATE FUNCTION append(
    p_store integer, p_writer uuid, p_batch bigint, p_known bigint, p_known_chain bytea,
    p_sessions bytea[], p_agents bytea[], p_tasks bytea[], p_sources bytea[], p_payloads text[], p_gens bigint[],
    p_epochs bigint[], p_nonces bytea[], p_bodies bytea[],
    OUT o_seqs bigint[], OUT o_states smallint[], OUT o_previous bytea, OUT o_chain bytea, OUT o_notify boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    w scroll.writer; h scroll.head; r record;
    v_secret bytea; v_limit bigint; v_seq bigint; v_found bigint; v_epoch bigint; v_session bytea;
    v_count integer := cardinality(p_bodies);
    v_size bigint := scroll.partition_events();
    v_bytes bigint := 0;
    v_chains bytea[] := '{}';
    v_seqs bigint[] := '{}';
    v_states smallint[] := '{}';
BEGIN
    PERFORM scroll.require(p_store, 'append');
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM scroll.lock_store(p_store);
    o_notify := false;
    SELECT * INTO w FROM scroll.writer WHERE store_id = p_store AND writer = p_writer;
    IF FOUND AND w.batch = p_batch THEN
        o_seqs := w.seqs; o_states := w.states; o_previous := w.previous;
        RETURN;
    ELSIF FOUND AND w.batch > p_batch THEN
        RAISE EXCEPTION 'batch % was given up for batch %', p_batch, w.batch USING ERRCODE = 'SC002';
    ELSIF NOT FOUND THEN
        DELETE FROM scroll.writer WHERE store_id = p_store AND seen < now() - interval '7 days';
    END IF;
    SELECT * INTO h FROM scroll.head WHERE store_id = p_store;
    SELECT s.secret, s.max_bytes INTO v_secret, v_limit FROM scroll.store s WHERE s.store_id = p_store;
    IF p_known > 0 THEN
        PERFORM 1 FROM scroll.event WHERE store_id = p_store AND seq = p_known AND chain = p_known_chain;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'seq % here is not the one that this host has', p_known USING ERRCODE = 'SC004';
        END IF;
    END IF;
    IF h.bytes >= v_limit THEN
        RAISE EXCEPTION 'the store holds % bytes of events and may hold %', h.bytes, v_limit USING ERRCODE = 'SC003';
    END IF;
    IF EXISTS (SELECT FROM scroll.tombstone t WHERE t.store_id = p_store) THEN
        SELECT array_agg(coalesce(t.gen, 0) ORDER BY p.n), bool_or(t.gen IS NOT NULL), array_agg(3 ORDER BY p.n)
        INTO v_seqs, o_notify, v_states
        FROM (SELECT d.n, string_to_array(d.digests, ',') AS digests, d.gen
              FROM unnest(p_payloads, p_gens) WITH ORDINALITY AS d(digests, gen, n)) p
        CROSS JOIN LATERAL (SELECT max(x.gen) AS gen FROM scroll.tombstone x WHERE x.store_id = p_store
                            AND x.digest = ANY (p.digests) AND (x.deleting OR x.gen > coalesce(p.gen, 0))) t;
        IF o_notify THEN
            o_seqs := v_seqs; o_states := v_states; o_notify := false;
            RETURN;
        END IF;
        v_seqs := '{}'; v_states := '{}';
    END IF;
    v_seq := h.last_seq;
    o_previous := h.chain;
    o_chain := h.chain;
    FOR r IN SELECT * FROM unnest(p_sessions, p_sources, p_epochs, p_nonces, p_bodies)
                           AS u(session_id, source, epoch, nonce, body) LOOP
        IF r.epoch IS NOT NULL THEN
            IF v_session IS DISTINCT FROM r.session_id THEN
                v_session := r.session_id;
                SELECT s.epoch INTO v_epoch FROM scroll.session s
                WHERE s.store_id = p_store AND s.session_id = v_session;
            END IF;
            IF v_epoch IS DISTINCT FROM r.epoch THEN
                v_seqs := v_seqs || coalesce(v_epoch, 0); v_states := v_states || 2::smallint;
                v_chains := v_chains || NULL::bytea;
                CONTINUE;
            END IF;
        END IF;
        IF r.source IS NOT NULL THEN
            INSERT INTO scroll.source VALUES (p_store, sha256(v_secret || r.source), v_seq + 1) ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                SELECT s.seq INTO v_found FROM scroll.source s
                WHERE s.store_id = p_store AND s.key = sha256(v_secret || r.source);
                v_seqs := v_seqs || v_found; v_states := v_states || 1::smallint;
                v_chains := v_chains || NULL::bytea;
                CONTINUE;
            END IF;
        END IF;
        v_seq := v_seq + 1;
        o_chain := sha256(o_chain || int8send(v_seq) || sha256(r.nonce || r.body));
        v_bytes := v_bytes + length(r.body) + 160;
        v_seqs := v_seqs || v_seq; v_states := v_states || 0::smallint; v_chains := v_chains || o_chain;
    END LOOP;
    IF (h.last_seq + v_size / 2) / v_size < (v_seq + v_size / 2) / v_size THEN  -- half a partition ahead
        PERFORM scroll.ensure_partition(n) FROM generate_series(h.last_seq / v_size, (v_seq + v_size / 2) / v_size) n;
    END IF;
    INSERT INTO scroll.event (store_id, seq, session_id, agent_id, task_id, payloads, nonce, body, chain)
    SELECT p_store, u.seq, u.session_id, u.agent_id, u.task_id, string_to_array(u.digests, ','), u.nonce, u.body, u.chain
    FROM unnest(v_seqs, v_chains, p_sessions, p_agents, p_tasks, p_payloads, p_nonces, p_bodies)
         AS u(seq, chain, session_id, agent_id, task_id, digests, nonce, body)
    WHERE u.chain IS NOT NULL;
    o_seqs := v_seqs; o_states := v_states;
    o_notify := v_seq > h.last_seq AND h.notified < clock_timestamp() - interval '20 milliseconds';
    UPDATE scroll.head SET last_seq = v_seq, chain = o_chain, bytes = h.bytes + v_bytes,
                           notified = CASE WHEN o_notify THEN clock_timestamp() ELSE h.notified END
    WHERE store_id = p_store;
    INSERT INTO scroll.writer AS old VALUES (p_store, p_writer, p_batch, o_seqs, o_states, o_previous, now())
    ON CONFLICT (store_id, writer) DO UPDATE SET (batch, seqs, states, previous, seen)
        = (excluded.batch, excluded.seqs, excluded.states, excluded.previous, excluded.seen);
END $$;

-- A commit that is on disk, and on synchronous standbys, when it returns; so is every commit before it.
CREATE PROCEDURE barrier() LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM pg_logical_emit_message(true, 'scroll', '');
END $$;

-- append(), durable: the lock goes with the first commit, and the flush comes after it, shared with other writers.
CREATE PROCEDURE record(
    p_store integer, p_writer uuid, p_batch bigint, p_known bigint, p_known_chain bytea,
    p_sessions bytea[], p_agents bytea[], p_tasks bytea[], p_sources bytea[], p_payloads text[], p_gens bigint[],
    p_epochs bigint[], p_nonces bytea[], p_bodies bytea[],
    INOUT o_seqs bigint[], INOUT o_states smallint[], INOUT o_previous bytea, INOUT o_chain bytea
) LANGUAGE plpgsql AS $$
DECLARE
    v_notify boolean;
BEGIN
    SELECT a.o_seqs, a.o_states, a.o_previous, a.o_chain, a.o_notify
    INTO o_seqs, o_states, o_previous, o_chain, v_notify
    FROM scroll.append(p_store, p_writer, p_batch, p_known, p_known_chain, p_sessions, p_agents, p_tasks, p_sources,
                       p_payloads, p_gens, p_epochs, p_nonces, p_bodies) a;
    COMMIT;
    CALL scroll.barrier();  -- the flush
    IF v_notify THEN
        COMMIT;
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM pg_notify('scroll', p_store::text);
    END IF;
END $$;

-- What became of a batch whose answer was lost: the answer, or NULL, and then it is refused if it still arrives.
CREATE FUNCTION settle(
    p_store integer, p_writer uuid, p_batch bigint,
    OUT o_seqs bigint[], OUT o_states smallint[], OUT o_previous bytea
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    w scroll.writer;
BEGIN
    PERFORM scroll.require(p_store, 'append');
    PERFORM scroll.lock_store(p_store);
    SELECT * INTO w FROM scroll.writer WHERE store_id = p_store AND writer = p_writer;
    IF FOUND AND w.batch = p_batch THEN
        o_seqs := w.seqs; o_states := w.states; o_previous := w.previous;
    ELSE
        INSERT INTO scroll.writer VALUES (p_store, p_writer, p_batch + 1, '{}', '{}', NULL, now())
        ON CONFLICT (store_id, writer) DO UPDATE SET batch = p_batch + 1, seqs = '{}', states = '{}', previous = NULL;
    END IF;
END $$;

-- leases ---------------------------------------------------------------------------------------------------------------

-- Takes a session: a new epoch, or NULL and the owner that has it. The head is what the new holder must have read.
CREATE FUNCTION claim(
    p_store integer, p_session bytea, p_owner text, p_lease interval,
    OUT o_epoch bigint, OUT o_owner text, OUT o_head bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    s scroll.session;
BEGIN
    PERFORM scroll.require(p_store, 'append');
    PERFORM scroll.lock_store(p_store);
    SELECT * INTO s FROM scroll.session WHERE store_id = p_store AND session_id = p_session;
    IF FOUND AND s.lease_until > clock_timestamp() AND s.owner <> p_owner THEN  -- the same: its answer was lost
        o_owner := s.owner;
        RETURN;
    END IF;
    o_epoch := coalesce(s.epoch, 0) + 1;
    SELECT last_seq INTO o_head FROM scroll.head WHERE store_id = p_store;
    INSERT INTO scroll.session VALUES (p_store, p_session, o_epoch, p_owner, clock_timestamp() + p_lease)
    ON CONFLICT (store_id, session_id) DO UPDATE
        SET (epoch, owner, lease_until) = (excluded.epoch, excluded.owner, excluded.lease_until);
END $$;

-- Who has a session open; NULL when it is free.
CREATE FUNCTION holder(p_store integer, p_session bytea) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'read');
    RETURN (SELECT s.owner FROM scroll.session s WHERE s.store_id = p_store AND s.session_id = p_session
            AND s.lease_until > clock_timestamp());
END $$;

-- Renews the leases of a process at once; the sessions that it has lost.
CREATE FUNCTION renew(p_store integer, p_sessions bytea[], p_epochs bigint[], p_lease interval) RETURNS SETOF bytea
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'append');
    RETURN QUERY
    WITH mine AS (SELECT * FROM unnest(p_sessions, p_epochs) AS u(session_id, epoch)), kept AS (
        UPDATE scroll.session s SET lease_until = clock_timestamp() + p_lease FROM mine
        WHERE s.store_id = p_store AND s.session_id = mine.session_id AND s.epoch = mine.epoch
        RETURNING s.session_id)
    SELECT mine.session_id FROM mine WHERE mine.session_id NOT IN (SELECT kept.session_id FROM kept);
END $$;

-- Gives a session back. The epoch goes on, so that nothing of this holder is recorded any more.
CREATE FUNCTION release(p_store integer, p_session bytea, p_epoch bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'append');
    UPDATE scroll.session SET epoch = epoch + 1, owner = NULL, lease_until = NULL
    WHERE store_id = p_store AND session_id = p_session AND epoch = p_epoch;
END $$;

-- replicas -------------------------------------------------------------------------------------------------------------

CREATE FUNCTION report(p_store integer, p_replica uuid, p_host text, p_applied bigint, p_purged bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'read');
    INSERT INTO scroll.replica VALUES (p_store, p_replica, p_host, p_applied, p_purged, now())
    ON CONFLICT (store_id, replica) DO UPDATE SET (host, applied, purged, seen)
        = (excluded.host, excluded.applied, excluded.purged, excluded.seen);
END $$;
