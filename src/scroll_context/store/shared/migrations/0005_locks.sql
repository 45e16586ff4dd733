-- Locks that only the functions of this schema can take. Any login may take an advisory lock, and could hold appends up.

-- Appends to a store, and all else that depends on its head, take turns: this locks the row of the head, which a role
-- without the right to change it cannot lock.
CREATE OR REPLACE FUNCTION lock_store(p_store integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this needs the isolation level read committed';
    END IF;
    PERFORM FROM scroll.head WHERE store_id = p_store FOR UPDATE;
END $$;

CREATE OR REPLACE FUNCTION ensure_partition(p_number bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, scroll, pg_temp AS $$
DECLARE
    part text := 'event_' || p_number;
    size bigint := scroll.partition_events();
BEGIN
    LOCK TABLE ONLY scroll.event IN SHARE UPDATE EXCLUSIVE MODE;  -- as attaching does; members may not
    IF to_regclass('scroll.' || part) IS NOT NULL THEN
        RETURN;
    END IF;
    EXECUTE format('CREATE TABLE scroll.%I (LIKE scroll.event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part);
    EXECUTE format('ALTER TABLE scroll.event ATTACH PARTITION scroll.%I FOR VALUES FROM (%s) TO (%s)',
                   part, p_number * size, (p_number + 1) * size);
END $$;
