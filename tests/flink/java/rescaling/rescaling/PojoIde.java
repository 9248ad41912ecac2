package rescaling;

import java.util.Objects;

/** A POJO with the {@code hashCode} that IntelliJ generates. */
public class PojoIde {
    public String name;
    public long id;
    public boolean active;
    public Integer level;

    public PojoIde() {}

    static PojoIde of(int n) {
        PojoIde made = new PojoIde();
        made.name = n % 4 == 0 ? null : Keys.text(n);
        made.id = (n % 2 == 0 ? 1 : -1) * n * 7_000_000_001L;
        made.active = n % 3 == 0;
        made.level = n % 5 == 0 ? null : n % 7;
        return made;
    }

    @Override
    public boolean equals(Object o) {
        if (this == o) {
            return true;
        }
        if (o == null || getClass() != o.getClass()) {
            return false;
        }
        PojoIde that = (PojoIde) o;
        return id == that.id && active == that.active && Objects.equals(name, that.name)
                && Objects.equals(level, that.level);
    }

    @Override
    public int hashCode() {
        int result = name != null ? name.hashCode() : 0;
        result = 31 * result + (int) (id ^ (id >>> 32));
        result = 31 * result + (active ? 1 : 0);
        result = 31 * result + (level != null ? level.hashCode() : 0);
        return result;
    }
}
