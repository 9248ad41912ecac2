package rescaling;

/** A POJO with the methods that Lombok generates of {@code @Data}. */
public class PojoLombok {
    private String name;
    private long id;
    private boolean active;
    private Integer level;
    private int count;

    public PojoLombok() {}

    static PojoLombok of(int n) {
        PojoLombok made = new PojoLombok();
        made.name = n % 4 == 0 ? null : Keys.text(n);
        made.id = n * -7_000_000_001L;
        made.active = n % 3 == 0;
        made.level = n % 5 == 0 ? null : n % 7;
        made.count = n * 13;
        return made;
    }

    public String getName() {
        return this.name;
    }

    public long getId() {
        return this.id;
    }

    public boolean isActive() {
        return this.active;
    }

    public Integer getLevel() {
        return this.level;
    }

    public int getCount() {
        return this.count;
    }

    public void setName(final String name) {
        this.name = name;
    }

    public void setId(final long id) {
        this.id = id;
    }

    public void setActive(final boolean active) {
        this.active = active;
    }

    public void setLevel(final Integer level) {
        this.level = level;
    }

    public void setCount(final int count) {
        this.count = count;
    }

    @Override
    public boolean equals(final Object o) {
        if (o == this) return true;
        if (!(o instanceof PojoLombok)) return false;
        final PojoLombok other = (PojoLombok) o;
        if (!other.canEqual((Object) this)) return false;
        if (this.getId() != other.getId()) return false;
        if (this.isActive() != other.isActive()) return false;
        if (this.getCount() != other.getCount()) return false;
        final Object this$level = this.getLevel();
        final Object other$level = other.getLevel();
        if (this$level == null ? other$level != null : !this$level.equals(other$level)) return false;
        final Object this$name = this.getName();
        final Object other$name = other.getName();
        if (this$name == null ? other$name != null : !this$name.equals(other$name)) return false;
        return true;
    }

    protected boolean canEqual(final Object other) {
        return other instanceof PojoLombok;
    }

    @Override
    public int hashCode() {
        final int PRIME = 59;
        int result = 1;
        final long $id = this.getId();
        result = result * PRIME + (int) ($id >>> 32 ^ $id);
        result = result * PRIME + (this.isActive() ? 79 : 97);
        result = result * PRIME + this.getCount();
        final Object $level = this.getLevel();
        result = result * PRIME + ($level == null ? 43 : $level.hashCode());
        final Object $name = this.getName();
        result = result * PRIME + ($name == null ? 43 : $name.hashCode());
        return result;
    }
}
