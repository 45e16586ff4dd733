-- The shared log on a Postgres server: tables, roles, the append, leases, replicas, erasure, objects.
--
-- One database may hold many stores. A seq is given out under the store's lock, so seqs are gapless
-- and in the order of commits, and each row is chained to the one before it with the bytes of
-- store/chain.py, format 2. A body is the MessagePack array of the columns between seq and chain;
-- names are bytes too, since text refuses U+0000.
--
-- Members reach the tables with SELECT under row security, and change them only through the functions
-- of this file. These run as the owner of the schema and ask for the login (session_user), never for
-- the current role. They check values as well as rights, since a member may be hostile.
--
-- Errors carry states of our own: SC001 no right, SC002 an older batch, SC003 full, SC004 another
-- history, SC005 a value that is refused.

CREATE TABLE store (
    store_id  integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid       uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    name      text NOT NULL UNIQUE,
    format    integer NOT NULL DEFAULT 2,
    payloads  text NOT NULL,        -- where the payloads are, for hosts that do not say
    max_bytes bigint,               -- of events; NULL for no limit
    secret    bytea NOT NULL
              DEFAULT sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())),
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
    source_bytes integer,           -- length of the source key that was sent beside the body
    PRIMARY KEY (store_id, seq)
) PARTITION BY RANGE (seq);

-- New hosts ask which events are erased, and collectors ask which event names a digest.
CREATE INDEX event_erased ON event (store_id, seq) WHERE leaf IS NOT NULL;
CREATE INDEX event_payloads ON event USING gin (payloads) WHERE payloads IS NOT NULL;

CREATE TABLE source (               -- hashes of recorded source keys, with the secret of the store
    store_id integer NOT NULL,
    key      bytea NOT NULL,
    seq      bigint NOT NULL,
    role     name NOT NULL,         -- the login that recorded it
    PRIMARY KEY (store_id, key)
);

CREATE TABLE writer (               -- the newest batch of each writing process, and its answer
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
    role        name,               -- the login that has the lease,
    secret      bytea,              -- the hash of a secret that only the holder knows,
    owner       text,               -- and JSON about the holder; NULL when nobody has the lease
    lease_until timestamptz,
    PRIMARY KEY (store_id, session_id)
);
CREATE INDEX session_role ON session (store_id, role);

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

CREATE TABLE replica (              -- copies on hosts: their progress, and the newest erasure there
    store_id integer NOT NULL,
    replica  uuid NOT NULL,
    role     name NOT NULL,
    host     text NOT NULL,
    applied  bigint NOT NULL,
    purged   bigint NOT NULL,
    seen     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (store_id, replica)
);

CREATE TABLE snapshot (             -- objects from which new hosts start
    store_id integer NOT NULL REFERENCES store,
    key      text NOT NULL,         -- of the object, below the store
    seq      bigint NOT NULL,       -- of its last event,
    chain    bytea NOT NULL,        -- and the chain value there
    bytes    bigint NOT NULL,
    sha256   text NOT NULL,
    created  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (store_id, key)
);

-- membership -------------------------------------------------------------------------------------

CREATE FUNCTION readable() RETURNS SETOF integer LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, scroll, pg_temp AS $$
    SELECT m.store_id FROM scroll.member m JOIN pg_roles r ON r.rolname = m.role
    WHERE pg_has_role(session_user, r.oid, 'MEMBER')
$$;

-- What this login may do with a store.
CREATE FUNCTION rights(p_store integer, OUT can_append boolean, OUT can_erase boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
    SELECT coalesce(bool_or(m.can_append), false), coalesce(bool_or(m.can_erase), false)
    FROM scroll.member m JOIN pg_roles r ON r.rolname = m.role
    WHERE m.store_id = p_store AND pg_has_role(session_user, r.oid, 'MEMBER')
$$;

CREATE FUNCTION require(p_store integer, p_right text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM 1 FROM scroll.member m JOIN pg_roles r ON r.rolname = m.role
    WHERE m.store_id = p_store AND pg_has_role(session_user, r.oid, 'MEMBER')
      AND CASE p_right WHEN 'append' THEN m.can_append WHEN 'erase' THEN m.can_erase ELSE true END;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'role % may not % this store', session_user,
            CASE p_right WHEN 'append' THEN 'append to' WHEN 'erase' THEN 'erase in' ELSE p_right END
        USING ERRCODE = 'SC001';
    END IF;
END $$;

ALTER TABLE store ENABLE ROW LEVEL SECURITY;
ALTER TABLE head ENABLE ROW LEVEL SECURITY;
ALTER TABLE event ENABLE ROW LEVEL SECURITY;
ALTER TABLE tombstone ENABLE ROW LEVEL SECURITY;
ALTER TABLE replica ENABLE ROW LEVEL SECURITY;
ALTER TABLE snapshot ENABLE ROW LEVEL SECURITY;
CREATE POLICY members ON store FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON head FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON event FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON tombstone FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON replica FOR SELECT USING (store_id IN (SELECT scroll.readable()));
CREATE POLICY members ON snapshot FOR SELECT USING (store_id IN (SELECT scroll.readable()));

-- partitions -------------------------------------------------------------------------------------

CREATE FUNCTION partition_events() RETURNS bigint LANGUAGE sql IMMUTABLE
AS 'SELECT 10000000::bigint';

CREATE FUNCTION ensure_partition(p_number bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    part text := 'event_' || p_number;
    size bigint := scroll.partition_events();
BEGIN
    -- Attaching takes this lock anyway, and members may not take it.
    LOCK TABLE ONLY scroll.event IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass('scroll.' || part) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE scroll.%I (LIKE scroll.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)',
                   part);
    EXECUTE format('ALTER TABLE scroll.event ATTACH PARTITION scroll.%I FOR VALUES FROM (%s) TO (%s)',
                   part, p_number * size, (p_number + 1) * size);
END $$;

SELECT ensure_partition(0);

-- the bytes of a row -----------------------------------------------------------------------------

-- A text as MessagePack has it, in the one way that Scroll writes it.
CREATE FUNCTION packed(p_text bytea) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN length(p_text) < 32 THEN set_byte('\x00', 0, 160 + length(p_text))
        WHEN length(p_text) < 256 THEN '\xd9'::bytea || substr(int4send(length(p_text)), 4)
        WHEN length(p_text) < 65536 THEN '\xda'::bytea || substr(int4send(length(p_text)), 3)
        ELSE '\xdb'::bytea || int4send(length(p_text))
    END || p_text
$$;

-- Refuses rows of which the server can tell that they are no events: sizes, and a body that does not
-- begin with the names or end with the source key that were sent beside it. Whether the rest can be
-- read is for hosts to find out; decoding every body here would slow appends down. An event about
-- the store itself makes every host act, so it needs the right to erase. (A loop: one query over all
-- rows was planned again and again, and took 100 to 600 microseconds of each append instead of 15.)
CREATE FUNCTION check_rows(
    p_store integer, p_sessions bytea[], p_agents bytea[], p_tasks bytea[], p_sources bytea[],
    p_nonces bytea[], p_bodies bytea[]
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    r record;
    v_names bytea[];
    v_prefix bytea;
    v_is_about_store boolean := false;
BEGIN
    FOR r IN SELECT * FROM unnest(p_sessions, p_agents, p_tasks, p_sources, p_nonces, p_bodies)
                           AS u(session_id, agent_id, task_id, source, nonce, body) LOOP
        IF v_names IS DISTINCT FROM ARRAY[r.session_id, r.agent_id, r.task_id] THEN
            v_names := ARRAY[r.session_id, r.agent_id, r.task_id];
            v_prefix := '\xdc0014'::bytea || packed(r.session_id) || packed(r.agent_id)
                        || packed(r.task_id);
        END IF;
        IF (length(r.body) <= 16777216 AND length(v_prefix) <= 12100 AND length(r.nonce) = 16
            AND substr(r.body, 1, length(v_prefix)) = v_prefix
            AND CASE WHEN r.source IS NULL THEN substr(r.body, length(r.body)) = '\xc0'
                     ELSE substr(r.body, length(r.body) - length(packed(r.source)) + 1)
                          = packed(r.source) END
           ) IS NOT TRUE THEN
            RAISE EXCEPTION 'a row of this append is not an event, or larger than an event may be'
            USING ERRCODE = 'SC005';
        END IF;
        v_is_about_store := v_is_about_store OR r.session_id = 'scroll.store'
            OR substr(r.body, length(v_prefix) + 1, 8) IN ('\xa765726173757265', '\xa773616c76616765');
    END LOOP;
    IF v_is_about_store AND NOT (SELECT x.can_erase FROM scroll.rights(p_store) x) THEN
        RAISE EXCEPTION 'role % may not record events about the store itself', session_user
        USING ERRCODE = 'SC001';
    END IF;
END $$;

-- The columns of a body, each as it is encoded; NULL when these are not the bytes of an event.
CREATE FUNCTION columns_of(p_body bytea) RETURNS bytea[] LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    v_columns bytea[] := '{}';
    v_at bigint := 3;  -- the next byte, counted from 0
    v_tag integer;
    v_size bigint;
BEGIN
    IF substr(p_body, 1, 3) IS DISTINCT FROM '\xdc0014'::bytea THEN
        RETURN NULL;
    END IF;
    FOR n IN 1..20 LOOP
        v_tag := get_byte(p_body, v_at::integer);
        v_size := CASE
            WHEN v_tag < 128 OR v_tag >= 224 OR v_tag = 192 THEN 1
            WHEN v_tag BETWEEN 160 AND 191 THEN v_tag - 159
            WHEN v_tag IN (204, 208) THEN 2
            WHEN v_tag IN (205, 209) THEN 3
            WHEN v_tag IN (206, 210) THEN 5
            WHEN v_tag IN (207, 211) THEN 9
            WHEN v_tag = 217 THEN 2 + get_byte(p_body, v_at::integer + 1)
            WHEN v_tag = 218 THEN 3 + 256 * get_byte(p_body, v_at::integer + 1)
                                    + get_byte(p_body, v_at::integer + 2)
            WHEN v_tag = 219 THEN 5 + 16777216::bigint * get_byte(p_body, v_at::integer + 1)
                                    + 65536 * get_byte(p_body, v_at::integer + 2)
                                    + 256 * get_byte(p_body, v_at::integer + 3)
                                    + get_byte(p_body, v_at::integer + 4)
        END;
        IF v_size IS NULL OR v_at + v_size > length(p_body) THEN
            RETURN NULL;
        END IF;
        v_columns := array_append(v_columns, substr(p_body, v_at::integer + 1, v_size::integer));
        v_at := v_at + v_size;
    END LOOP;
    RETURN CASE WHEN v_at = length(p_body) THEN v_columns END;
EXCEPTION WHEN array_subscript_error THEN  -- the bytes end too early
    RETURN NULL;
END $$;

-- Whether a body holds nothing but what an erased event may keep: every other column is blank, or is
-- as it was. Of a row that could not be read, only short columns are accepted.
CREATE FUNCTION is_blank(p_old bytea[], p_new bytea[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT p_new IS NOT NULL
       AND p_new[6] = '\xa0' AND p_new[7] = packed('[erased]')
       AND p_new[8] = '\xc0' AND p_new[9] = '\xc0' AND p_new[10] = '\xc0'
       AND p_new[13] = '\xa0' AND p_new[17] = packed('{"erased":true}')
       AND (p_new[20] = '\xc0' OR (substr(p_new[20], 1, 9) = '\xd92f'::bytea || 'erased:'
                                   AND encode(substr(p_new[20], 10), 'escape') ~ '^[0-9a-f]{40}$'))
       AND (SELECT bool_and(p_new[n] IN ('\xa0', '\xc0')
                            OR CASE WHEN p_old IS NULL THEN length(p_new[n]) <= 256
                                    ELSE p_new[n] = p_old[n] END)
            FROM unnest('{1,2,3,4,5,11,12,14,15,16,18,19}'::integer[]) AS n)
$$;

-- Whether two events say the same. Their times and their places in a conversation may differ.
CREATE FUNCTION is_same(p_old bytea[], p_new bytea[]) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(p_old[1:13] = p_new[1:13] AND p_old[17] = p_new[17] AND p_old[20] = p_new[20], false)
$$;

-- Refuses digests that a body does not name: whoever names a payload keeps it from being deleted. A
-- snapshot names those of its variables, in its content or, when that is long, in its own payload,
-- which the server cannot read. An erasure reports payloads that are still named.
CREATE FUNCTION check_payloads(p_payloads text[], p_bodies bytea[]) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    r record;
    v_columns bytea[];
    v_is_named boolean;
BEGIN
    FOR r IN SELECT * FROM unnest(p_payloads, p_bodies) AS u(digests, body)
             WHERE u.digests IS NOT NULL LOOP
        v_is_named := false;
        IF length(r.digests) <= 65 * 20000 AND r.digests ~ '^[0-9a-f]{64}(,[0-9a-f]{64})*$' THEN
            v_columns := scroll.columns_of(r.body);
            IF v_columns[4] IS DISTINCT FROM packed('snapshot') THEN
                v_is_named := v_columns[8] = packed(r.digests::bytea);
            ELSIF v_columns[8] = '\xc0' THEN
                v_is_named := NOT EXISTS (
                    SELECT FROM unnest(string_to_array(r.digests, ',')) AS d(digest)
                    WHERE position(d.digest::bytea IN v_columns[7]) = 0);
            ELSE
                v_is_named := v_columns[8] = packed(left(r.digests, 64)::bytea);
            END IF;
        END IF;
        IF v_is_named IS NOT TRUE THEN
            RAISE EXCEPTION 'a row of this append names payloads that its body does not name'
            USING ERRCODE = 'SC005';
        END IF;
    END LOOP;
END $$;

-- appending --------------------------------------------------------------------------------------

-- Appends to a store, and all else that depends on its head, take turns. This locks the row of the
-- head, which a role without the right to change it cannot lock; any login may take an advisory lock.
-- A member can still hold the lock in a transaction of its own: then the others fail in time.
CREATE FUNCTION lock_patience() RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT '8s' $$;

CREATE FUNCTION lock_store(p_store integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this needs the isolation level read committed';
    END IF;
    PERFORM set_config('lock_timeout', scroll.lock_patience(), true);
    PERFORM FROM scroll.head WHERE store_id = p_store FOR UPDATE;
END $$;

-- Appends what is new of a batch. States: 0 recorded, 1 known by its source key, 2 fenced (seqs has the
-- epoch that counts), 3 nothing was written since payloads of the batch were deleted (seqs has the
-- generation for each row that needs one), 4 nothing was written since another login has recorded
-- something else under the source key. An erased event cannot be compared, and counts as known.
CREATE FUNCTION append(
    p_store integer, p_writer uuid, p_batch bigint, p_known bigint, p_known_chain bytea,
    p_sessions bytea[], p_agents bytea[], p_tasks bytea[], p_sources bytea[], p_payloads text[],
    p_gens bigint[], p_epochs bigint[], p_nonces bytea[], p_bodies bytea[],
    OUT o_seqs bigint[], OUT o_states smallint[], OUT o_previous bytea, OUT o_chain bytea,
    OUT o_notify boolean
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    w scroll.writer; h scroll.head; r record;
    v_secret bytea; v_limit bigint; v_seq bigint; v_found bigint; v_epoch bigint; v_session bytea;
    v_size bigint := scroll.partition_events();
    v_bytes bigint := 0;
    v_chains bytea[] := '{}';
    v_seqs bigint[] := '{}';
    v_states smallint[] := '{}';
    v_keys bytea[] := '{}';
    v_key bytea; v_role name; v_is_taken boolean := false;
BEGIN
    PERFORM scroll.require(p_store, 'append');
    PERFORM scroll.check_rows(p_store, p_sessions, p_agents, p_tasks, p_sources, p_nonces, p_bodies);
    PERFORM scroll.check_payloads(p_payloads, p_bodies);
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
            RAISE EXCEPTION 'seq % here is not the one that this host has', p_known
            USING ERRCODE = 'SC004';
        END IF;
    END IF;
    IF h.bytes >= v_limit THEN
        RAISE EXCEPTION 'the store holds % bytes of events and may hold %', h.bytes, v_limit
        USING ERRCODE = 'SC003';
    END IF;
    IF EXISTS (SELECT FROM scroll.tombstone t WHERE t.store_id = p_store) THEN
        SELECT array_agg(coalesce(t.gen, 0) ORDER BY p.n), bool_or(t.gen IS NOT NULL),
               array_agg(3 ORDER BY p.n)
        INTO v_seqs, o_notify, v_states
        FROM (SELECT d.n, string_to_array(d.digests, ',') AS digests, d.gen
              FROM unnest(p_payloads, p_gens) WITH ORDINALITY AS d(digests, gen, n)) p
        CROSS JOIN LATERAL (SELECT max(x.gen) AS gen FROM scroll.tombstone x
                            WHERE x.store_id = p_store AND x.digest = ANY (p.digests)
                            AND (x.deleting OR x.gen > coalesce(p.gen, 0))) t;
        IF o_notify THEN
            o_seqs := v_seqs; o_states := v_states; o_notify := false;
            RETURN;
        END IF;
        v_seqs := '{}'; v_states := '{}';
    END IF;
    v_seq := h.last_seq;
    o_previous := h.chain;
    o_chain := h.chain;
    FOR r IN SELECT * FROM unnest(p_sessions, p_sources, p_payloads, p_epochs, p_nonces, p_bodies)
                           AS u(session_id, source, digests, epoch, nonce, body) LOOP
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
            v_key := sha256(v_secret || r.source);
            INSERT INTO scroll.source VALUES (p_store, v_key, v_seq + 1, session_user)
            ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                SELECT s.seq, s.role INTO v_found, v_role FROM scroll.source s
                WHERE s.store_id = p_store AND s.key = v_key;
                v_seqs := v_seqs || v_found; v_states := v_states || 1::smallint;
                v_chains := v_chains || NULL::bytea;
                IF v_role <> session_user AND EXISTS (
                    SELECT FROM scroll.event e
                    WHERE e.store_id = p_store AND e.seq = v_found AND e.leaf IS NULL
                      AND NOT scroll.is_same(scroll.columns_of(e.body), scroll.columns_of(r.body))) THEN
                    v_states[cardinality(v_states)] := 4;
                    v_is_taken := true;
                END IF;
                CONTINUE;
            END IF;
            v_keys := v_keys || v_key;
        END IF;
        v_seq := v_seq + 1;
        o_chain := sha256(o_chain || int8send(v_seq) || sha256(r.nonce || r.body));
        v_bytes := v_bytes + length(r.body) + coalesce(length(r.digests), 0) + 160;
        v_seqs := v_seqs || v_seq; v_states := v_states || 0::smallint; v_chains := v_chains || o_chain;
    END LOOP;
    IF v_is_taken THEN
        DELETE FROM scroll.source s WHERE s.store_id = p_store AND s.key = ANY (v_keys);
        o_seqs := v_seqs; o_states := v_states;
        RETURN;
    END IF;
    IF (h.last_seq + v_size / 2) / v_size < (v_seq + v_size / 2) / v_size THEN  -- half a partition ahead
        PERFORM scroll.ensure_partition(n)
        FROM generate_series(h.last_seq / v_size, (v_seq + v_size / 2) / v_size) n;
    END IF;
    INSERT INTO scroll.event (store_id, seq, session_id, agent_id, task_id, payloads, nonce, body, chain,
                              source_bytes)
    SELECT p_store, u.seq, u.session_id, u.agent_id, u.task_id, string_to_array(u.digests, ','), u.nonce,
           u.body, u.chain, length(u.source)
    FROM unnest(v_seqs, v_chains, p_sessions, p_agents, p_tasks, p_payloads, p_nonces, p_bodies, p_sources)
         AS u(seq, chain, session_id, agent_id, task_id, digests, nonce, body, source)
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

-- Any login can fill the queue of notifications, and then no transaction that notifies can commit.
-- Hosts look every second without a notification.
CREATE FUNCTION may_notify() RETURNS boolean LANGUAGE sql VOLATILE
AS 'SELECT pg_notification_queue_usage() < 0.5';

-- append(), durable: the lock goes with the first commit, and the flush comes after it, shared with
-- other writers.
CREATE PROCEDURE record(
    p_store integer, p_writer uuid, p_batch bigint, p_known bigint, p_known_chain bytea,
    p_sessions bytea[], p_agents bytea[], p_tasks bytea[], p_sources bytea[], p_payloads text[],
    p_gens bigint[], p_epochs bigint[], p_nonces bytea[], p_bodies bytea[],
    INOUT o_seqs bigint[], INOUT o_states smallint[], INOUT o_previous bytea, INOUT o_chain bytea
) LANGUAGE plpgsql AS $$
DECLARE
    v_notify boolean;
BEGIN
    SELECT a.o_seqs, a.o_states, a.o_previous, a.o_chain, a.o_notify
    INTO o_seqs, o_states, o_previous, o_chain, v_notify
    FROM scroll.append(p_store, p_writer, p_batch, p_known, p_known_chain, p_sessions, p_agents, p_tasks,
                       p_sources, p_payloads, p_gens, p_epochs, p_nonces, p_bodies) a;
    COMMIT;
    CALL scroll.barrier();  -- the flush
    IF v_notify AND scroll.may_notify() THEN
        COMMIT;
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM pg_notify('scroll', p_store::text);
    END IF;
END $$;

-- The answer to a batch that was lost on its way, or NULL; then the batch is refused if it still arrives.
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
        ON CONFLICT (store_id, writer)
        DO UPDATE SET batch = p_batch + 1, seqs = '{}', states = '{}', previous = NULL;
    END IF;
END $$;

-- leases -----------------------------------------------------------------------------------------
--
-- A lease belongs to a login and to whoever knows its secret. Others learn who has it, not the secret,
-- so they can neither renew it, nor give it back, nor claim the session again as its holder. However
-- long a lease is asked for, it runs out within an hour unless it is renewed.

CREATE FUNCTION lease_end(p_lease interval) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT clock_timestamp() + greatest(interval '0', least(p_lease, interval '1 hour'))
$$;

-- Takes a session: a new epoch, or NULL and the owner that has it. The head is what the new holder must
-- have read. A claim with the secret of the present lease is one whose answer was lost.
CREATE FUNCTION claim(
    p_store integer, p_session bytea, p_owner text, p_secret bytea, p_lease interval,
    OUT o_epoch bigint, OUT o_owner text, OUT o_head bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    s scroll.session;
BEGIN
    PERFORM scroll.require(p_store, 'append');
    IF p_secret IS NULL OR length(p_secret) < 16 OR length(p_session) > 4000 THEN
        RAISE EXCEPTION 'a lease needs a secret of 16 bytes and a session name' USING ERRCODE = 'SC005';
    END IF;
    PERFORM scroll.lock_store(p_store);
    SELECT * INTO s FROM scroll.session WHERE store_id = p_store AND session_id = p_session;
    IF FOUND AND s.lease_until > clock_timestamp()
       AND (s.role, s.secret) IS DISTINCT FROM (session_user, sha256(p_secret)) THEN
        o_owner := s.owner;
        RETURN;
    END IF;
    IF 2000 <= (SELECT count(*) FROM scroll.session x
                WHERE x.store_id = p_store AND x.role = session_user AND x.session_id <> p_session
                  AND x.lease_until > clock_timestamp()) THEN
        RAISE EXCEPTION 'role % has 2000 sessions open, and may not have more', session_user
        USING ERRCODE = 'SC005';
    END IF;
    o_epoch := coalesce(s.epoch, 0) + 1;
    SELECT last_seq INTO o_head FROM scroll.head WHERE store_id = p_store;
    INSERT INTO scroll.session
    VALUES (p_store, p_session, o_epoch, session_user, sha256(p_secret), left(p_owner, 4000),
            scroll.lease_end(p_lease))
    ON CONFLICT (store_id, session_id) DO UPDATE SET (epoch, role, secret, owner, lease_until)
        = (excluded.epoch, excluded.role, excluded.secret, excluded.owner, excluded.lease_until);
END $$;

-- Who has a session open; NULL when it is free.
CREATE FUNCTION holder(p_store integer, p_session bytea) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'read');
    RETURN (SELECT s.owner FROM scroll.session s WHERE s.store_id = p_store AND s.session_id = p_session
            AND s.lease_until > clock_timestamp());
END $$;

-- Renews the leases of a process at once; returns the sessions that it has lost.
CREATE FUNCTION renew(
    p_store integer, p_sessions bytea[], p_epochs bigint[], p_secrets bytea[], p_lease interval
) RETURNS SETOF bytea
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'append');
    RETURN QUERY
    WITH mine AS (
        SELECT * FROM unnest(p_sessions, p_epochs, p_secrets) AS u(session_id, epoch, secret)
    ), renewed AS (
        UPDATE scroll.session s SET lease_until = scroll.lease_end(p_lease) FROM mine
        WHERE s.store_id = p_store AND s.session_id = mine.session_id AND s.epoch = mine.epoch
          AND s.role = session_user AND s.secret = sha256(mine.secret)
        RETURNING s.session_id)
    SELECT mine.session_id FROM mine
    WHERE mine.session_id NOT IN (SELECT renewed.session_id FROM renewed);
END $$;

-- Gives a session back. The epoch goes on, so that nothing of this holder is recorded any more.
CREATE FUNCTION release(p_store integer, p_session bytea, p_epoch bigint, p_secret bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'append');
    UPDATE scroll.session
    SET epoch = epoch + 1, role = NULL, secret = NULL, owner = NULL, lease_until = NULL
    WHERE store_id = p_store AND session_id = p_session AND epoch = p_epoch
      AND role = session_user AND secret = sha256(p_secret);
END $$;

-- replicas ---------------------------------------------------------------------------------------

-- Notes how far a copy is. Its name is the beginning of the hash of its secret, so nobody else can
-- report for it, and so make an erasure look complete.
CREATE FUNCTION report(
    p_store integer, p_secret bytea, p_host text, p_applied bigint, p_purged bigint
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    v_replica uuid := encode(substr(sha256(p_secret), 1, 16), 'hex')::uuid;
    v_head bigint := (SELECT last_seq FROM scroll.head WHERE store_id = p_store);
BEGIN
    PERFORM scroll.require(p_store, 'read');
    IF p_secret IS NULL OR length(p_secret) < 16 THEN
        RAISE EXCEPTION 'a copy needs a secret of 16 bytes' USING ERRCODE = 'SC005';
    END IF;
    IF NOT EXISTS (SELECT FROM scroll.replica r WHERE r.store_id = p_store AND r.replica = v_replica) THEN
        DELETE FROM scroll.replica r WHERE r.store_id = p_store AND r.role = session_user
            AND r.seen < now() - interval '30 days';  -- no erasure waits for these any more
        IF 1000 <= (SELECT count(*) FROM scroll.replica r
                    WHERE r.store_id = p_store AND r.role = session_user) THEN
            RAISE EXCEPTION 'role % has reported 1000 copies, and may not have more', session_user
            USING ERRCODE = 'SC005';
        END IF;
    END IF;
    INSERT INTO scroll.replica
    VALUES (p_store, v_replica, session_user, left(p_host, 255), least(p_applied, v_head),
            least(p_purged, v_head), now())
    ON CONFLICT (store_id, replica) DO UPDATE SET (role, host, applied, purged, seen)
        = (excluded.role, excluded.host, excluded.applied, excluded.purged, excluded.seen);
END $$;

-- erasure ----------------------------------------------------------------------------------------

-- Replaces the bodies of events by blank ones, and appends the event that records it. The leaf takes
-- the place of nonce and body in the chain. `source` keeps the keyed hash of a source key, so that an
-- import on any host knows an erased event again. p_source names this erasure, so that a call whose
-- answer was lost can be repeated. Events about the store itself are not erased.
CREATE FUNCTION erase(
    p_store integer, p_source bytea, p_seqs bigint[], p_bodies bytea[], p_nonce bytea, p_body bytea,
    OUT o_seq bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    h scroll.head;
    v_bad bigint;
    v_key bytea;
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    PERFORM scroll.check_rows(p_store, ARRAY['scroll.store'::bytea], ARRAY[''::bytea], ARRAY[''::bytea],
                              ARRAY[NULL::bytea], ARRAY[p_nonce], ARRAY[p_body]);
    PERFORM scroll.lock_store(p_store);  -- before any look at an event: more may come meanwhile
    SELECT sha256(s.secret || p_source) INTO v_key FROM scroll.store s WHERE s.store_id = p_store;
    SELECT s.seq INTO o_seq FROM scroll.source s WHERE s.store_id = p_store AND s.key = v_key;
    IF FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO h FROM scroll.head WHERE store_id = p_store;
    SELECT min(u.seq) INTO v_bad FROM unnest(p_seqs) AS u(seq) WHERE u.seq NOT BETWEEN 1 AND h.last_seq;
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION 'there is no seq % that could be erased', v_bad USING ERRCODE = 'SC005';
    END IF;
    SELECT min(e.seq) INTO v_bad FROM unnest(p_seqs, p_bodies) AS u(seq, body) JOIN scroll.event e
        ON e.store_id = p_store AND e.seq = u.seq AND e.leaf IS NULL
    CROSS JOIN LATERAL scroll.columns_of(u.body) AS blank
    WHERE (scroll.is_blank(scroll.columns_of(e.body), blank) AND blank[20] = '\xc0') IS NOT TRUE
       OR e.session_id = 'scroll.store';
    IF v_bad IS NOT NULL THEN
        RAISE EXCEPTION 'seq % cannot be erased so: the new row is not blank, or the event is about the store',
            v_bad USING ERRCODE = 'SC005';
    END IF;
    UPDATE scroll.event e
    SET leaf = sha256(e.nonce || e.body), body = u.body, nonce = NULL, payloads = NULL
    FROM unnest(p_seqs, p_bodies) AS u(seq, body)
    WHERE e.store_id = p_store AND e.seq = u.seq AND e.leaf IS NULL;
    o_seq := h.last_seq + 1;
    INSERT INTO scroll.source VALUES (p_store, v_key, o_seq, session_user);
    INSERT INTO scroll.event (store_id, seq, session_id, agent_id, task_id, nonce, body, chain)
    VALUES (p_store, o_seq, 'scroll.store', '', '', p_nonce, p_body,
            sha256(h.chain || int8send(o_seq) || sha256(p_nonce || p_body)));
    UPDATE scroll.head SET last_seq = o_seq, bytes = h.bytes + length(p_body) + 160,
        chain = (SELECT e.chain FROM scroll.event e WHERE e.store_id = p_store AND e.seq = o_seq)
    WHERE store_id = p_store;
END $$;

-- garbage collection (collect.py) ----------------------------------------------------------------
--
-- A tombstone says that the objects of a digest that were put before its generation are deleted, or
-- may be at any time. Generations count in the whole store, so one number tells which tombstones a
-- writer had seen when it put its bodies; append() refuses an event whose bodies were put before a
-- tombstone of theirs.

-- Declares deleted those of the digests that no event names, under the lock that every append takes.
-- Returns what may be deleted now.
CREATE FUNCTION bury(p_store integer, p_digests text[]) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    IF current_setting('synchronous_commit') = 'off' THEN  -- a crash must not forget what was deleted
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM scroll.lock_store(p_store);
    RETURN QUERY
    INSERT INTO scroll.tombstone AS t
    SELECT p_store, d.digest,
           (SELECT coalesce(max(x.gen), 0) + 1 FROM scroll.tombstone x WHERE x.store_id = p_store), false
    FROM (SELECT DISTINCT u.digest FROM unnest(p_digests) AS u(digest)) d
    WHERE NOT EXISTS (SELECT FROM scroll.event e
                      WHERE e.store_id = p_store AND e.payloads @> ARRAY[d.digest])
    ON CONFLICT (store_id, digest) DO UPDATE SET gen = excluded.gen
    RETURNING t.digest;
END $$;

-- snapshots (snapshots.py) -----------------------------------------------------------------------
--
-- New hosts start from a snapshot, so a role that may erase makes and removes them.

-- Lists a snapshot whose object is there. False when its head is not the history of this server, and
-- when events about the store itself come after it: one of them may be an erasure of what it holds.
CREATE FUNCTION add_snapshot(
    p_store integer, p_key text, p_seq bigint, p_chain bytea, p_bytes bigint, p_sha256 text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    IF p_key !~ '^snapshots/[0-9a-z-]+\.gz$' THEN
        RAISE EXCEPTION 'this is not the name of a snapshot' USING ERRCODE = 'SC005';
    END IF;
    PERFORM scroll.lock_store(p_store);
    IF NOT EXISTS (SELECT FROM scroll.event WHERE store_id = p_store AND seq = p_seq AND chain = p_chain)
       OR EXISTS (SELECT FROM scroll.event
                  WHERE store_id = p_store AND seq > p_seq AND session_id = 'scroll.store') THEN
        RETURN false;
    END IF;
    INSERT INTO scroll.snapshot VALUES (p_store, p_key, p_seq, p_chain, p_bytes, p_sha256)
    ON CONFLICT DO NOTHING;
    RETURN true;
END $$;

-- Takes snapshots off the list, all but the newest p_keep and those before p_before; their keys, for
-- the caller to delete.
CREATE FUNCTION drop_snapshots(p_store integer, p_keep integer, p_before bigint) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    RETURN QUERY DELETE FROM scroll.snapshot s
    WHERE s.store_id = p_store AND (s.seq < p_before OR s.key NOT IN (
        SELECT n.key FROM scroll.snapshot n WHERE n.store_id = p_store
        ORDER BY n.seq DESC, n.created DESC LIMIT p_keep))
    RETURNING s.key;
END $$;

-- taking over a folder (push.py) -----------------------------------------------------------------

-- Appends rows that continue the history as they are. Only for a store to which no host has appended
-- yet, since the rows belong to no lease; each link of the chain is computed here and must be the one
-- that the row has. Returns the newest seq; or the generation of a deleted payload, when nothing was
-- written and the bodies must be put again.
CREATE FUNCTION adopt(
    p_store integer, p_first bigint, p_generation bigint, p_sessions bytea[], p_agents bytea[],
    p_tasks bytea[], p_sources bytea[], p_payloads text[], p_nonces bytea[], p_bodies bytea[],
    p_leaves bytea[], p_chains bytea[], OUT o_last bigint, OUT o_generation bigint
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    h scroll.head; r record;
    v_secret bytea; v_chain bytea;
    v_last bigint := p_first + cardinality(p_bodies) - 1;
    v_size bigint := scroll.partition_events();
    v_bytes bigint := 0;
BEGIN
    PERFORM scroll.require(p_store, 'erase');
    PERFORM scroll.check_rows(p_store, array_agg(u.session_id), array_agg(u.agent_id), array_agg(u.task_id),
                              array_agg(u.source), array_agg(u.nonce), array_agg(u.body))
    FROM unnest(p_sessions, p_agents, p_tasks, p_sources, p_nonces, p_bodies, p_leaves)
         AS u(session_id, agent_id, task_id, source, nonce, body, leaf)
    WHERE u.leaf IS NULL;
    PERFORM scroll.check_payloads(p_payloads, p_bodies);
    IF EXISTS (SELECT FROM unnest(p_bodies, p_leaves) AS u(body, leaf)
               WHERE u.leaf IS NOT NULL AND is_blank(NULL, columns_of(u.body)) IS NOT TRUE) THEN
        RAISE EXCEPTION 'a row of an erased event is not blank' USING ERRCODE = 'SC005';
    END IF;
    PERFORM scroll.lock_store(p_store);
    SELECT * INTO h FROM scroll.head WHERE store_id = p_store;
    IF h.last_seq = v_last AND h.chain = p_chains[cardinality(p_chains)] THEN  -- the answer was lost
        o_last := v_last;
        RETURN;
    END IF;
    IF EXISTS (SELECT FROM scroll.writer w WHERE w.store_id = p_store) THEN
        RAISE EXCEPTION 'hosts have appended to this store already' USING ERRCODE = 'SC005';
    END IF;
    IF h.last_seq <> p_first - 1 THEN
        RAISE EXCEPTION 'the store ends at seq %, and these events begin at seq %', h.last_seq, p_first
        USING ERRCODE = 'SC005';
    END IF;
    SELECT max(t.gen) INTO o_generation FROM scroll.tombstone t
    WHERE t.store_id = p_store AND t.gen > p_generation AND t.digest IN (
        SELECT unnest(string_to_array(d.digests, ',')) FROM unnest(p_payloads) AS d(digests));
    IF o_generation IS NOT NULL THEN
        RETURN;
    END IF;
    v_chain := h.chain;
    FOR r IN SELECT * FROM unnest(p_nonces, p_bodies, p_leaves, p_chains) WITH ORDINALITY
                           AS u(nonce, body, leaf, chain, n) LOOP
        v_chain := sha256(v_chain || int8send(p_first + r.n - 1)
                          || coalesce(r.leaf, sha256(r.nonce || r.body)));
        IF v_chain IS DISTINCT FROM r.chain THEN
            RAISE EXCEPTION 'seq % does not continue the chain', p_first + r.n - 1 USING ERRCODE = 'SC005';
        END IF;
        v_bytes := v_bytes + length(r.body) + 160;
    END LOOP;
    PERFORM scroll.ensure_partition(n)
    FROM generate_series(h.last_seq / v_size, (v_last + v_size / 2) / v_size) n;
    INSERT INTO scroll.event
        (store_id, seq, session_id, agent_id, task_id, payloads, nonce, body, leaf, chain, source_bytes)
    SELECT p_store, p_first + u.n - 1, u.session_id, u.agent_id, u.task_id,
           string_to_array(u.digests, ','), u.nonce, u.body, u.leaf, u.chain, length(u.source)
    FROM unnest(p_sessions, p_agents, p_tasks, p_payloads, p_nonces, p_bodies, p_leaves, p_chains, p_sources)
         WITH ORDINALITY AS u(session_id, agent_id, task_id, digests, nonce, body, leaf, chain, source, n);
    SELECT s.secret INTO v_secret FROM scroll.store s WHERE s.store_id = p_store;
    INSERT INTO scroll.source SELECT p_store, sha256(v_secret || u.source), p_first + u.n - 1, session_user
    FROM unnest(p_sources) WITH ORDINALITY AS u(source, n) WHERE u.source IS NOT NULL;
    UPDATE scroll.head SET last_seq = v_last, chain = v_chain, bytes = h.bytes + v_bytes
    WHERE store_id = p_store;
    o_last := v_last;
END $$;
