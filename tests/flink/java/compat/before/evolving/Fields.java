package evolving;

import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.types.Either;

/** Classes with fields before. */
@SuppressWarnings("rawtypes")
public final class Fields {
    private Fields() {}

    public static class Same {
        public long a;
        public String b;
    }

    public static class Added {
        public long a;
    }

    public static class AddedPrimitive {
        public long a;
    }

    public static class AddedSeveral {
        public String b;
    }

    public static class AddedBefore {
        public long b;
    }

    public static class Removed {
        public long a;
        public String b;
    }

    public static class RemovedSeveral {
        public long a;
        public String b;
        public double c;
        public Instant d;
    }

    public static class AddedAndRemoved {
        public long a;
        public String b;
    }

    public static class AllReplaced {
        public long a;
    }

    public static class Reordered {
        public long a;
        public String b;
        public double c;
    }

    public static class RenamedField {
        public String customer;
        public long a;
    }

    public static class TypeChanged {
        public long a;
    }

    public static class TypeChangedAndAdded {
        public long a;
    }

    public static class IntToLong {
        public int a;
    }

    public static class FloatToDouble {
        public float a;
    }

    public static class Boxed {
        public long a;
    }

    public static class Unboxed {
        public Integer a;
    }

    public static class PrimitiveToString {
        public int a;
    }

    public static class StringToEnum {
        public String a;
    }

    public static class EnumToString {
        public Enums.Same a;
    }

    public static class DateToInstant {
        public java.util.Date a;
    }

    public static class InstantToLong {
        public Instant a;
    }

    public static class DateToSqlDate {
        public java.util.Date a;
    }

    public static class BigIntegerToDecimal {
        public java.math.BigInteger a;
    }

    public static class DoubleToDecimal {
        public double a;
    }

    public static class LocalDateKept {
        public java.time.LocalDate a;
    }

    public static class LocalDateToTime {
        public java.time.LocalDate a;
    }

    public static class NestedSame {
        public Same in;
    }

    public static class NestedAdded {
        public Added in;
    }

    public static class NestedRemoved {
        public Removed in;
        public long z;
    }

    public static class NestedTypeChanged {
        public TypeChanged in;
    }

    public static class NestedTwice {
        public NestedAdded in;
    }

    public static class NestedTwiceChanged {
        public NestedTypeChanged in;
    }

    public static class NestedOtherClass {
        public Same in;
    }

    public static class NestedBecameString {
        public Same in;
    }

    public static class NestedInTuple {
        public Tuple2<String, Added> in;
    }

    public static class NestedInTupleChanged {
        public Tuple2<String, TypeChanged> in;
    }

    public static class NestedInArray {
        public Added[] in;
    }

    public static class NestedInArrayChanged {
        public TypeChanged[] in;
    }

    public static class NestedInEither {
        public Either<Long, Added> in;
    }

    public static class NestedInList {
        public List<Added> in;
    }

    public static class NestedInListChanged {
        public List<TypeChanged> in;
    }

    public static class NestedInMap {
        public Map<String, Added> in;
    }

    public static class NestedInMapChanged {
        public Map<String, TypeChanged> in;
    }

    public static class NestedAddedAndEnum {
        public Added in;
        public Enums.AddedAtEnd e;
    }

    public static class NestedNewNested {
        public long a;
    }

    public static class TupleArity {
        public Tuple2<String, Long> a;
    }

    public static class TupleType {
        public Tuple2<String, Long> a;
    }

    public static class TupleSwapped {
        public Tuple2<String, Long> a;
    }

    public static class EitherType {
        public Either<String, Long> a;
    }

    public static class ListKept {
        public List<String> a;
    }

    public static class ListElement {
        public List<String> a;
    }

    public static class ListToSet {
        public List<String> a;
    }

    public static class ListToArrayList {
        public List<String> a;
    }

    public static class ListToCollection {
        public List<String> a;
    }

    public static class ListToArray {
        public List<String> a;
    }

    public static class ListToString {
        public List<String> a;
    }

    public static class RawListToList {
        public List a;
    }

    public static class ListAdded {
        public long a;
    }

    public static class ListRemoved {
        public long a;
        public List<String> b;
    }

    public static class SetKept {
        public Set<String> a;
    }

    public static class SetElement {
        public Set<String> a;
    }

    public static class SetToHashSet {
        public Set<String> a;
    }

    public static class MapKept {
        public Map<String, Long> a;
    }

    public static class MapKey {
        public Map<String, Long> a;
    }

    public static class MapValue {
        public Map<String, Long> a;
    }

    public static class MapToHashMap {
        public Map<String, Long> a;
    }

    public static class MapOfLists {
        public Map<String, List<Long>> a;
    }

    public static class MapOfListsChanged {
        public Map<String, List<Long>> a;
    }

    public static class ListOfEnums {
        public List<Enums.AddedAtEnd> a;
    }

    public static class ArrayKept {
        public long[] a;
        public String[] b;
        public Integer[] c;
    }

    public static class ArrayElement {
        public long[] a;
    }

    public static class ArrayBoxed {
        public long[] a;
    }

    public static class ArrayObjectElement {
        public Integer[] a;
    }

    public static class ArrayToString {
        public String[] a;
    }

    public static class ArrayOfArrays {
        public long[][] a;
    }

    public static class ArrayOfArraysChanged {
        public long[][] a;
    }

    public static class EnumSame {
        public Enums.Same a;
    }

    public static class EnumAdded {
        public Enums.AddedAtEnd a;
    }

    public static class EnumAddedInMiddle {
        public Enums.AddedInMiddle a;
    }

    public static class EnumReordered {
        public Enums.Reordered a;
    }

    public static class EnumRemoved {
        public Enums.Removed a;
    }

    public static class EnumOther {
        public Enums.Same a;
    }

    public static class EnumAddedAndField {
        public Enums.AddedAtEnd a;
    }

    public static class EnumRemovedWithField {
        public Enums.Removed a;
        public long b;
    }

    public static class EnumArray {
        public Enums.AddedAtEnd[] a;
    }

    public static class Generic {
        public Object a;
    }

    public static class GenericType {
        public Opened a;
    }

    public static class GenericToOther {
        public java.util.UUID a;
    }

    public static class GenericToPojo {
        public Object a;
    }

    public static class PojoToGeneric {
        public Same a;
    }

    public static class UuidToString {
        public java.util.UUID a;
    }

    public static class TransientNow {
        public long a;
        public String b;
    }

    public static class NoLongerTransient {
        public long a;
        public transient String b;
    }

    public static class Recursive {
        public long a;
        public Recursive next;
    }

    public static class ValueField {
        public org.apache.flink.types.IntValue a;
    }

    public static class VoidAdded {
        public long a;
    }

    public static class BecamePojo {
        private final long a;

        public BecamePojo(long a) {
            this.a = a;
        }
    }

    public static class NoLongerPojo {
        public long a;
    }

    public static class Opened {
        private final long a;

        public Opened(long a) {
            this.a = a;
        }
    }

    public static class Getters {
        private long a;

        public long getA() {
            return a;
        }

        public void setA(long a) {
            this.a = a;
        }
    }
}
